/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program, built against the installed library: one rank multiplies two small matrices. */
#include <stdio.h>
#include <string.h>

#include <lap/lap.h>
#include <lap/lap_cuda.h>

static lap_status_t multiply(lap_world_t *world, float *a, float *b, float *d)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.m = desc.n = desc.k = 2;
    lap_op_t *op;
    lap_status_t status = lap_op_create(lap_world_group(world), &desc, &op);
    if (status != LAP_OK)
        return status;
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    args.m = 2;
    args.a = lap_tensor(a, LAP_FLOAT32, 2, 2);
    args.b = lap_tensor(b, LAP_FLOAT32, 2, 2);
    args.d = lap_tensor(d, LAP_FLOAT32, 2, 2);
    status = lap_op_run(op, &args);
    /* A CPU has no streams of the caller's. */
    if (status == LAP_OK && lap_op_enqueue(op, &args, NULL) != LAP_ERR_UNSUPPORTED)
        status = LAP_ERR_INTERNAL;
    lap_op_destroy(op);
    return status;
}

int main(void)
{
    char expected[32];
    snprintf(expected, sizeof(expected), "%d.%d.%d", LAP_VERSION_MAJOR, LAP_VERSION_MINOR,
             LAP_VERSION_PATCH);
    if (strcmp(lap_version_string(), expected) != 0) {
        fprintf(stderr, "header %s, library %s\n", expected, lap_version_string());
        return 1;
    }
    float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, d[4] = {0};
    lap_world_t *world;
    lap_status_t status = lap_world_create(NULL, &world);
    if (status == LAP_OK) {
        status = multiply(world, a, b, d);
        lap_world_destroy(world);
    }
    if (status != LAP_OK) {
        fprintf(stderr, "%s: %s\n", lap_status_string(status), lap_last_error());
        return 1;
    }
    printf("%g %g %g %g\n", d[0], d[1], d[2], d[3]);
    return !(d[0] == 17 && d[1] == 23 && d[2] == 39 && d[3] == 53);
}
