/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs whose fragments are described wrongly: the checker follows no index that leads nowhere, and
 * says what is wrong.
 */
#include <string.h>

#include "core/status.h"
#include "describe.h"
#include "nn/program.h"
#include "schedule/lower.h"
#include "tap.h"

static const lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;

/* Takes a place of fragment f of all ranks to another region, and expects a sentence. */
static void misplace(uint32_t region, size_t offset, const char *expected)
{
    const lap_target_t *target = lap_target_at(0);
    const lap_nn_linking_t linking = {.target = target, .optimizer = &optimizer};
    const lap_nn_desc_t desc = describe(LAP_NN_LAYERNORM_MLP);
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    tap_success(lap_nn_plan_init(&desc, 2, &plan), "a plan");
    tap_success(lap_nn_programs_init(&programs, &plan, &linking), "its programs");
    for (int place = 0; place < LAP_PLACES; place++) {
        uint32_t f = 0; /* the first that has that place */
        while (f < programs.programs[0].nfragments &&
               programs.programs[0].fragments[f].places[place].region == LAP_NO_REGION)
            f++;
        if (f == programs.programs[0].nfragments || place == LAP_SCRATCH)
            continue;
        lap_link_place_t *own = &programs.programs[0].fragments[f].places[place];
        const lap_link_place_t before = *own;
        own->region = region == LAP_PLACES ? own->region : region;
        own->offset += offset;
        tap_failure(lap_linked_check(programs.list, programs.size, false), LAP_ERR_CHECK, expected,
                    "rank 0", NULL);
        *own = before;
    }
    tap_success(lap_linked_check(programs.list, programs.size, false), "as it was, it is proved");
    lap_nn_programs_clear(&programs);
}

/* What fragments say of their groups and steps is wrong in one place. */
static void misdescribe(void)
{
    const lap_target_t *target = lap_target_at(0);
    const lap_nn_linking_t linking = {.target = target, .optimizer = &optimizer};
    const lap_nn_desc_t desc = describe(LAP_NN_LAYERNORM_MLP);
    lap_nn_plan_t plan;
    lap_nn_programs_t programs = {.size = 0};
    size_t tried = 0, found = 0;
    tap_success(lap_nn_plan_init(&desc, 3, &plan), "a plan");
    tap_success(lap_nn_programs_init(&programs, &plan, &linking), "its programs");
    for (uint32_t f = 0; f < programs.programs[0].nfragments; f++)
        for (int way = 0; way < 12; way++) {
            const int rank = way % 2 ? 2 : 0;
            lap_fragment_t *fragment = &programs.programs[rank].fragments[f];
            lap_link_dep_t none = {0}, *link = fragment->nlinks ? &fragment->links[0] : &none;
            lap_step_t *step = &fragment->schedule.steps[0];
            const lap_fragment_t before = *fragment;
            const lap_link_dep_t link_before = *link;
            const lap_step_t step_before = *step;
            const bool has[] = {true, true, true, link != &none, link != &none, step->nuses > 0};
            const char *const words[] = {"fragment", "fragment", "fragment",
                                         "a link",   "a link",   "the end of the uses"};
            if (!has[way / 2])
                continue;
            fragment->base += way / 2 == 0;
            fragment->schedule.rank = way / 2 == 1 ? 1 : fragment->schedule.rank;
            fragment->buffer += way / 2 == 2 && fragment->schedule.steps[0].kind != LAP_STEP_KERNEL;
            link->fragment = way / 2 == 3 ? f : link->fragment;
            link->dep = way / 2 == 4 ? 1u << 20 : link->dep;
            step->first_use += way / 2 == 5 ? 1u << 20 : 0;
            if (fragment->buffer != before.buffer || way / 2 != 2) {
                tried++;
                found += lap_linked_check(programs.list, programs.size, false) == LAP_ERR_CHECK &&
                         strstr(lap_last_error(), words[way / 2]) != NULL;
            }
            *fragment = before;
            *link = link_before;
            *step = step_before;
        }
    tap_ok(tried > 100 && found == tried,
           "%zu of %zu fragments that are described wrongly are found", found, tried);
    tap_success(lap_linked_check(programs.list, programs.size, false),
                "as they were, they are proved");
    lap_nn_programs_clear(&programs);
}

int main(void)
{
    misdescribe();
    misplace(LAP_NO_REGION, 0, "a place without a region");
    misplace(1u << 20, 0, "a place without a region");
    misplace(LAP_PLACES, (size_t)1 << 30, "an access outside a region");
    return tap_done();
}
