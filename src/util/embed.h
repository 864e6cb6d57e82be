/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file as bytes of this program: the build says where it is. Who embeds it declares the symbol,
 * and symbol##_end after its last byte, as arrays of unsigned char. A 0 follows.
 */
#ifndef LAP_UTIL_EMBED_H
#define LAP_UTIL_EMBED_H

#define LAP_EMBED(symbol, path)                                                                    \
    __asm__(".section .rodata, \"a\"\n"                                                            \
            ".global " #symbol "\n"                                                                \
            ".hidden " #symbol "\n"                                                                \
            ".global " #symbol "_end\n"                                                            \
            ".hidden " #symbol "_end\n"                                                            \
            ".balign 64\n" #symbol ":\n"                                                           \
            ".incbin \"" path "\"\n" #symbol "_end:\n"                                             \
            ".byte 0\n"                                                                            \
            ".previous\n")

#endif
