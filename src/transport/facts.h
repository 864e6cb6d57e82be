/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transport can do: its part of a target, see schedule/target.h. Those of GPUs are here as
 * well, so that builds without CUDA know them.
 */
#ifndef LAP_TRANSPORT_FACTS_H
#define LAP_TRANSPORT_FACTS_H

/* Builders ask for these, never for a name. */
enum {
    LAP_CAN_PUT = 1 << 0,     /* ranges, and signals with them, get into a peer's memory */
    LAP_CAN_ADDRESS = 1 << 1, /* compute can read and write a peer's memory in place */
    LAP_CAN_SPAN = 1 << 2,    /* ranks may be on several hosts; mpirun starts them */
    LAP_CAN_LANES = 1 << 3,   /* its device takes two GEMMs at a time: one fills the other's gaps */
    LAP_CAN_FOREIGN = 1 << 4, /* other libraries can use its communicator: see overlap/foreign.c */

    LAP_SHM_CAN = LAP_CAN_PUT | LAP_CAN_ADDRESS,
    LAP_CUDA_IPC_CAN = LAP_CAN_PUT | LAP_CAN_ADDRESS | LAP_CAN_LANES,
    /* Between hosts; where NCCL gives the addresses of peers' memory, LAP_CAN_ADDRESS, too. */
    LAP_NCCL_CAN = LAP_CAN_PUT | LAP_CAN_SPAN | LAP_CAN_LANES | LAP_CAN_FOREIGN,
};

#endif
