/* SPDX-License-Identifier: Apache-2.0 */
/* A build without MPI: what there would be says so. */
#include "core/make.h"
#include "core/status.h"

lap_status_t lap_mpi_world_create(const lap_environment_t *environment,
                                  const lap_settings_t *settings, lap_world_t **world_p)
{
    (void)world_p;
    if (!environment->hosts[0])
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "transport %s needs MPI, and this build has none: install libopenmpi-dev "
                         "or libmpich-dev and build again",
                         settings->transport_name);
    return lap_error(
        LAP_ERR_UNSUPPORTED,
        "%d ranks were started on several hosts (%s), and this build has no MPI, which "
        "carries data between hosts: install libopenmpi-dev or libmpich-dev and build "
        "again; or, with GPUs, set LAP_MASTER=host:port in all ranks, with the host of "
        "rank 0",
        environment->size, environment->hosts);
}

lap_status_t lap_mpi_describe(char *text, size_t bytes)
{
    (void)text;
    (void)bytes;
    return lap_error(LAP_ERR_UNSUPPORTED, "this build has no MPI");
}
