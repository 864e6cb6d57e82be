/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel of a pass that reads one element more than its entry declares is found in guard mode, and named; the same
 * kernel without that mistake is not.
 */
#include <string.h>

#include "core/status.h"
#include "device/host/host_guard.h"
#include "memory.h"
#include "tap.h"

static lap_kernels_t broken; /* those of ref, with a norm that reads too far */
static lap_status_t (*norm_forward)(lap_stream_t *stream, const lap_norm_forward_t *norm);

/* The norm of a matrix of one column more: the last of its last row is behind the end of x. */
static lap_status_t too_far(lap_stream_t *stream, const lap_norm_forward_t *norm)
{
    lap_norm_forward_t more = *norm;
    more.x.cols = norm->x.cols + 1;
    return norm_forward(stream, &more);
}

static lap_status_t forward(lap_group_t *group, bool breaks)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn;
    desc.kind = LAP_NN_TRANSFORMER;
    desc.seq = 6;
    desc.hidden = 24;
    desc.heads = 4;
    LAP_TRY(lap_nn_create(group, &desc, &nn));
    broken = *nn->kernels;
    norm_forward = broken.norm_forward;
    broken.norm_forward = too_far;
    if (breaks)
        nn->kernels = &broken;
    const lap_nn_part_t in = lap_nn_input(nn, 0), out = lap_nn_output(nn, 0);
    const lap_tensor_t x =
        lap_tensor(nn_new(nn, in.rows * in.cols * sizeof(float)), LAP_FLOAT32, in.rows, in.cols);
    const lap_tensor_t y = lap_tensor(nn_new(nn, out.rows * out.cols * sizeof(float)), LAP_FLOAT32,
                                      out.rows, out.cols);
    lap_status_t status = lap_nn_forward(nn, 6, &x, &y);
    if (status == LAP_OK)
        status = lap_nn_wait(nn);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    nn_free(nn, x.data);
    nn_free(nn, y.data);
    lap_nn_destroy(nn);
    lap_error_restore(&saved);
    return status;
}

int main(void)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    lap_world_t *world;
    options.device = "ref";
    tap_success(lap_host_guard_start(), "guard mode begins");
    if (!tap_success(lap_world_create(&options, &world), "a world"))
        return tap_done();
    lap_group_t *group = lap_world_group(world);
    tap_success(forward(group, false), "a forward whose kernels keep to their operands");
    tap_ok(lap_host_guard_count() > 0, "... all of them under guard: %d",
           (int)lap_host_guard_count());
    tap_failure(forward(group, true), LAP_ERR_CHECK, "kernel norm touches byte", "of its operand",
                NULL);
    lap_world_destroy(world);
    return tap_done();
}
