/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which several are measured: all are first as often, and follow each other as often. */
#include "util/turns.h"

#include "tap.h"

enum { MOST = 17 };

static void check(size_t count)
{
    size_t at[MOST][MOST] = {{0}}, after[MOST][MOST] = {{0}};
    size_t moved = 0, unequal = 0;
    const size_t times = 1 + count % 2;
    for (size_t round = 0; round < times * count; round++)
        for (size_t place = 0; place < count; place++) {
            const size_t who = lap_turn(round, place, count);
            at[who][place]++;
            if (place > 0)
                after[who][lap_turn(round, place - 1, count)]++;
        }
    for (size_t who = 0; who < count; who++)
        for (size_t i = 0; i < count; i++) {
            moved += at[who][i] != times;
            unequal += after[who][i] != (i != who ? times : 0);
        }
    tap_ok(moved == 0, "%zu: each is at each place as often, %zu times not", count, moved);
    tap_ok(unequal == 0, "%zu: each follows each other one as often, %zu do not", count, unequal);
}

int main(void)
{
    for (size_t count = 1; count <= MOST; count++)
        check(count);
    return tap_done();
}
