/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test that fails in the way that its argument names, for tap.sh, which reads what it says.
 */
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "tap.h"

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (strcmp(how, "wrong") == 0) {
        int wrong = 0;
        for (int i = 0; i < 9; i++)
            wrong += tap_wrong(i % 3 == 1, "element %d is %d, expected 0", i, i);
        tap_ok(wrong == 0, "zeros: %d wrong", wrong);
        tap_ok(false, "another check");
    } else if (strcmp(how, "right") == 0) {
        tap_wrong(true, "an example that nobody asks for");
        tap_ok(true, "right");
    } else if (strcmp(how, "no-failure") == 0) {
        lap_error(LAP_ERR_SYSTEM, "an old sentence");
        tap_failure(LAP_OK, LAP_ERR_MISMATCH, "rank 3", NULL);
    } else if (strcmp(how, "other-failure") == 0) {
        tap_failure(lap_error(LAP_ERR_TIMEOUT, "rank 2 waited"), LAP_ERR_MISMATCH, "rank 3", NULL);
    } else if (strcmp(how, "hang") == 0) {
        tap_ok(true, "something was right");
        tap_doing("the long division of %d", 7);
        for (;;)
            pause();
    }
    return tap_done();
}
