/* SPDX-License-Identifier: Apache-2.0 */
/* The hashes against what is published: SHA-256 in FIPS 180-4 and RFC 6234, SipHash by its authors. */
#include "util/keyed_hash.h"

#include <stdio.h>
#include <string.h>

#include "tap.h"

static bool is_sha256(const void *data, size_t bytes, const char *expected)
{
    unsigned char hash[LAP_SHA256_BYTES];
    char text[2 * LAP_SHA256_BYTES + 1];
    lap_sha256(data, bytes, hash);
    for (int i = 0; i < LAP_SHA256_BYTES; i++)
        snprintf(text + 2 * (size_t)i, 3, "%02x", hash[i]);
    return !tap_wrong(strcmp(text, expected) != 0, "got %s", text);
}

static void test_sha256(void)
{
    static char many[1000000];
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    char ten[640];
    tap_ok(is_sha256("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
           "SHA-256 of nothing");
    tap_ok(is_sha256("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
           "SHA-256 of abc");
    tap_ok(is_sha256(two, 56, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"),
           "SHA-256 of 56 bytes, whose end needs a block of its own");
    for (int i = 0; i < 640; i++)
        ten[i] = (char)('0' + i % 8);
    tap_ok(is_sha256(ten, 640, "594847328451bdfa85056225462cc1d867d877fb388df0ce35f25ab5562bfbb5"),
           "SHA-256 of whole blocks");
    memset(many, 'a', sizeof(many));
    tap_ok(is_sha256(many, sizeof(many),
                     "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
           "SHA-256 of a million bytes");
}

/* The first bytes of vectors.h of the reference: key 00 01 .. 0f, messages 00 01 .. of 0, 1, .. bytes. */
static const uint64_t vectors[] = {
    0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d,
    0xcf2794e0277187b7, 0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137,
    0x93f5f5799a932462, 0x9e0082df0ba9e4b0, 0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7,
    0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee, 0xa129ca6149be45e5,
};

static void test_siphash(void)
{
    const lap_key_t key = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
    unsigned char message[16];
    int wrong = 0;
    for (size_t bytes = 0; bytes < sizeof(vectors) / sizeof(vectors[0]); bytes++) {
        const uint64_t hash = lap_siphash(&key, message, bytes);
        wrong += tap_wrong(hash != vectors[bytes], "%zu bytes: %016llx", bytes,
                           (unsigned long long)hash);
        message[bytes] = (unsigned char)bytes;
    }
    tap_ok(wrong == 0, "SipHash-2-4 of 0 to 15 bytes");
}

int main(void)
{
    test_sha256();
    test_siphash();
    return tap_done();
}
