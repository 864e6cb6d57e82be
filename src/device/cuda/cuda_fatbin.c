/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled kernels, as bytes of this library. The build says where they are. */
__asm__(".section .rodata, \"a\"\n"
        ".global lap_cuda_fatbin\n"
        ".hidden lap_cuda_fatbin\n"
        ".balign 64\n"
        "lap_cuda_fatbin:\n"
        ".incbin \"" LAP_CUDA_FATBIN "\"\n"
        ".byte 0\n"
        ".previous\n");

extern const unsigned char lap_cuda_fatbin[];
