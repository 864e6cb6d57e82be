/* SPDX-License-Identifier: Apache-2.0 */
/* Lists and rings that double: what is in them stays, what is new is zero, and sizes do not wrap. */
#include "util/alloc.h"

#include "tap.h"

static void a_list(void)
{
    size_t room = 0, grown = 0;
    uint64_t *list = NULL;
    bool zero = true, same = true;
    for (size_t i = 0; i < 1000; i++) {
        const size_t before = room;
        list = lap_grow(list, i, &room, sizeof(*list));
        grown += room != before;
        for (size_t k = i; k < room; k++)
            zero = zero && list[k] == 0;
        list[i] = i + 1;
    }
    for (size_t i = 0; i < 1000; i++)
        same = same && list[i] == i + 1;
    tap_ok(same && zero, "a list of 1000 has what was put in, and zeros behind it");
    tap_ok(grown == 11 && room == 1024, "it grew eleven times, from 1 to 1024");
    lap_free(list);
}

static void several(void)
{
    size_t room = 0;
    char *text = lap_grow_by(NULL, 0, 0, &room, 1);
    tap_ok(text && room == 1, "room for none more is a pointer too");
    text = lap_grow_by(text, 0, 32, &room, 1);
    tap_ok(room == 32, "32 fit into 32");
    text = lap_grow_by(text, 1, 32, &room, 1);
    tap_ok(room == 64, "33 do not");
    text = lap_grow_by(text, 64, 1000, &room, 1);
    tap_ok(text && room == 2048, "room for many more comes at once");
    lap_free(text);
}

static void too_many(void)
{
    char one = 0;
    size_t room = SIZE_MAX / 2 + 1;
    tap_ok(!lap_grow_by(&one, room, 1, &room, 1), "twice half of all memory does not wrap");
    room = 1;
    tap_ok(!lap_grow_by(&one, 1, SIZE_MAX, &room, 1), "nor does one and all memory");
    room = SIZE_MAX / 16;
    tap_ok(!lap_grow(&one, room, &room, 64), "nor do the bytes of many elements");
    tap_ok(room == SIZE_MAX / 16, "the room is what it was");
    room = (size_t)UINT32_MAX + 1;
    tap_ok(!lap_grow(&one, UINT32_MAX, &room, 1), "a list has fewer than 2^32 elements");
    room = SIZE_MAX / 2 + 1;
    tap_ok(!lap_ring_grow(&one, 0, 1, &room, 1), "a ring does not wrap either");
}

/* From every place at which a full ring can begin. */
static void a_ring(void)
{
    bool same = true;
    for (uint64_t first = 0; first < 16; first++) {
        size_t room = 8;
        uint64_t *ring = lap_alloc(room, sizeof(*ring));
        for (uint64_t i = first; i < first + 8; i++)
            ring[i % room] = i;
        ring = lap_ring_grow(ring, first, first + 8, &room, sizeof(*ring));
        same = same && room == 16;
        for (uint64_t i = first; i < first + 8; i++)
            same = same && ring[i % room] == i;
        lap_free(ring);
    }
    tap_ok(same, "a ring that grew has each element at its number");
}

int main(void)
{
    a_list();
    several();
    too_many();
    a_ring();
    return tap_done();
}
