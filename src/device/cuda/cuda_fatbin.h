/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled kernels as bytes of this library: the build says in which file they are. Who embeds them
 * declares the symbol, as an array of unsigned char.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_FATBIN_H
#define LAP_DEVICE_CUDA_CUDA_FATBIN_H

#define LAP_CUDA_EMBED(symbol, path)                                                               \
    __asm__(".section .rodata, \"a\"\n"                                                            \
            ".global " #symbol "\n"                                                                \
            ".hidden " #symbol "\n"                                                                \
            ".balign 64\n" #symbol ":\n"                                                           \
            ".incbin \"" path "\"\n"                                                               \
            ".byte 0\n"                                                                            \
            ".previous\n")

#endif
