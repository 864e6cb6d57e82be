/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressing with the fixed code of deflate and the nearest of a few matches, which is enough for
 * JSON; and decompressing whatever others have compressed. The latter follows Mark Adler's puff: codes
 * are decoded bit by bit.
 */
#include "gzip.h"

#include <stdint.h>
#include <string.h>

#include "core/status.h"
#include "util/alloc.h"

enum {
    WINDOW = 32768,
    HASH_BITS = 15,
    CHAIN_MOST = 24, /* matches that are tried */
    MATCH_LEAST = 3,
    MATCH_MOST = 258,
    END_OF_BLOCK = 256,
    LENGTHS = 29, /* codes of lengths, */
    DISTANCES = 30,
    BITS_MOST = 15, /* of a code */
    LITERALS = 288,
    TRAILER = 8,
};

static const uint16_t length_base[LENGTHS] = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                              15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                              67, 83, 99, 115, 131, 163, 195, 227, 258};
static const uint8_t length_extra[LENGTHS] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                              2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const uint16_t distance_base[DISTANCES] = {
    1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
    193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
static const uint8_t distance_extra[DISTANCES] = {0, 0, 0,  0,  1,  1,  2,  2,  3,  3,
                                                  4, 4, 5,  5,  6,  6,  7,  7,  8,  8,
                                                  9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

bool lap_is_gzip(const void *data, size_t bytes)
{
    static const unsigned char magic[] = {0x1f, 0x8b, 8};
    return bytes >= sizeof(magic) && memcmp(data, magic, sizeof(magic)) == 0;
}

bool lap_has_gzip_name(const char *path)
{
    const size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

static uint32_t crc_of(const unsigned char *data, size_t bytes)
{
    uint32_t table[256], crc = 0xffffffffu;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] & 1 ? 0xedb88320u ^ table[i] >> 1 : table[i] >> 1;
    }
    for (size_t i = 0; i < bytes; i++)
        crc = table[(crc ^ data[i]) & 0xff] ^ crc >> 8;
    return ~crc;
}

/* ---- compressing ---- */

typedef struct writer {
    FILE *file;
    uint64_t bits;
    unsigned count; /* of bits that are not written yet */
} writer_t;

static void put_bits(writer_t *writer, uint32_t value, unsigned count)
{
    writer->bits |= (uint64_t)value << writer->count;
    for (writer->count += count; writer->count >= 8; writer->count -= 8) {
        putc((int)(writer->bits & 0xff), writer->file);
        writer->bits >>= 8;
    }
}

/* Codes come with their first bit first. */
static void put_code(writer_t *writer, uint32_t code, unsigned count)
{
    uint32_t turned = 0;
    for (unsigned i = 0; i < count; i++)
        turned |= (code >> i & 1) << (count - 1 - i);
    put_bits(writer, turned, count);
}

static void put_symbol(writer_t *writer, uint32_t symbol)
{
    if (symbol < 144)
        put_code(writer, 0x30 + symbol, 8);
    else if (symbol < 256)
        put_code(writer, 0x190 + symbol - 144, 9);
    else if (symbol < 280)
        put_code(writer, symbol - 256, 7);
    else
        put_code(writer, 0xc0 + symbol - 280, 8);
}

/* The last code whose base is not above a value. */
static uint32_t find_code(const uint16_t *base, uint32_t count, size_t value)
{
    uint32_t code = 0;
    while (code + 1 < count && base[code + 1] <= value)
        code++;
    return code;
}

static void put_match(writer_t *writer, size_t length, size_t distance)
{
    const uint32_t l = find_code(length_base, LENGTHS, length);
    const uint32_t d = find_code(distance_base, DISTANCES, distance);
    put_symbol(writer, END_OF_BLOCK + 1 + l);
    put_bits(writer, (uint32_t)(length - length_base[l]), length_extra[l]);
    put_code(writer, d, 5);
    put_bits(writer, (uint32_t)(distance - distance_base[d]), distance_extra[d]);
}

static uint32_t hash_of(const unsigned char *at)
{
    const uint32_t value = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16;
    return value * 2654435761u >> (32 - HASH_BITS);
}

/* Where bytes that begin alike are: the latest by hash, and before each the one before. */
typedef struct chains {
    size_t *latest;  /* one more than the place; 0: none */
    size_t *earlier; /* [WINDOW] */
} chains_t;

static void enter(const chains_t *chains, const unsigned char *data, size_t at)
{
    size_t *latest = &chains->latest[hash_of(data + at)];
    chains->earlier[at % WINDOW] = *latest;
    *latest = at + 1;
}

static size_t find_match(const chains_t *chains, const unsigned char *data, size_t bytes, size_t at,
                         size_t *distance_p)
{
    const size_t most = bytes - at < MATCH_MOST ? bytes - at : MATCH_MOST;
    size_t best = 0;
    if (most < MATCH_LEAST)
        return 0;
    size_t next = chains->latest[hash_of(data + at)];
    for (int i = 0; i < CHAIN_MOST && next > 0 && at - (next - 1) < WINDOW; i++) {
        const size_t from = next - 1;
        size_t length = 0;
        while (length < most && data[from + length] == data[at + length])
            length++;
        if (length > best) {
            best = length;
            *distance_p = at - from;
        }
        next = chains->earlier[from % WINDOW];
        if (next > from) /* of another turn around the window */
            break;
    }
    return best >= MATCH_LEAST ? best : 0;
}

static void put_little(writer_t *writer, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        put_bits(writer, value >> 8 * i & 0xff, 8);
}

lap_status_t lap_gzip(const void *given, size_t bytes, FILE *file)
{
    static const unsigned char head[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff};
    const unsigned char *data = given;
    writer_t writer = {.file = file};
    chains_t chains = {lap_alloc((size_t)1 << HASH_BITS, sizeof(size_t)),
                       lap_alloc(WINDOW, sizeof(size_t))};
    if (!chains.latest || !chains.earlier) {
        lap_free(chains.latest);
        lap_free(chains.earlier);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to compress %zu bytes", bytes);
    }
    fwrite(head, 1, sizeof(head), file);
    put_bits(&writer, 1 | 1 << 1, 3); /* the last block, of the fixed code */
    for (size_t at = 0; at < bytes;) {
        size_t distance = 0, length = find_match(&chains, data, bytes, at, &distance);
        if (length > 0)
            put_match(&writer, length, distance);
        else
            put_symbol(&writer, data[at]);
        for (size_t end = at + (length ? length : 1); at < end; at++)
            if (bytes - at >= MATCH_LEAST)
                enter(&chains, data, at);
    }
    put_symbol(&writer, END_OF_BLOCK);
    put_bits(&writer, 0, (8 - writer.count) % 8);
    put_little(&writer, crc_of(data, bytes));
    put_little(&writer, (uint32_t)bytes);
    lap_free(chains.latest);
    lap_free(chains.earlier);
    return LAP_OK;
}

/* ---- decompressing ---- */

typedef struct reader {
    const unsigned char *data;
    size_t bytes, at;
    uint32_t bits;
    unsigned count; /* of bits that were read and not used yet */
    unsigned char *out;
    size_t length, room, most;
    const char *wrong; /* NULL: nothing is */
    bool no_memory;
} reader_t;

static bool fail(reader_t *reader, const char *wrong)
{
    if (!reader->wrong)
        reader->wrong = wrong;
    return false;
}

static uint32_t take_bits(reader_t *reader, unsigned count)
{
    while (reader->count < count) {
        if (reader->at == reader->bytes) {
            (void)fail(reader, "it ends too early");
            return 0;
        }
        reader->bits |= (uint32_t)reader->data[reader->at++] << reader->count;
        reader->count += 8;
    }
    const uint32_t value = reader->bits & ((1u << count) - 1);
    reader->bits >>= count;
    reader->count -= count;
    return value;
}

static void put_byte(reader_t *reader, unsigned char byte)
{
    if (reader->length == reader->room) {
        const size_t room = reader->room ? 2 * reader->room : 65536;
        unsigned char *out =
            reader->room < reader->most ? lap_realloc(reader->out, reader->room, room, 1) : NULL;
        if (!out) {
            reader->no_memory = reader->room < reader->most;
            (void)fail(reader, "it holds too much");
            return;
        }
        reader->out = out;
        reader->room = room;
    }
    reader->out[reader->length++] = byte;
}

/* A code: how many symbols have each length, and the symbols in their order. */
typedef struct code {
    uint16_t counts[BITS_MOST + 1];
    uint16_t symbols[LITERALS];
} code_t;

/* From the lengths of all symbols; false: there are more than lengths leave room for. */
static bool make_code(code_t *code, const uint8_t *lengths, uint32_t count)
{
    uint16_t places[BITS_MOST + 1] = {0};
    int left = 1;
    memset(code->counts, 0, sizeof(code->counts));
    for (uint32_t s = 0; s < count; s++)
        code->counts[lengths[s]]++;
    for (int bits = 1; bits <= BITS_MOST; bits++) {
        left = 2 * left - code->counts[bits];
        if (left < 0)
            return false;
    }
    for (int bits = 1; bits < BITS_MOST; bits++)
        places[bits + 1] = (uint16_t)(places[bits] + code->counts[bits]);
    for (uint32_t s = 0; s < count; s++)
        if (lengths[s])
            code->symbols[places[lengths[s]]++] = (uint16_t)s;
    return true;
}

static uint32_t take_symbol(reader_t *reader, const code_t *code)
{
    int value = 0, first = 0, index = 0;
    for (int bits = 1; bits <= BITS_MOST && !reader->wrong; bits++) {
        value |= (int)take_bits(reader, 1);
        const int count = code->counts[bits];
        if (value - count < first)
            return code->symbols[index + value - first];
        index += count;
        first = (first + count) << 1;
        value <<= 1;
    }
    (void)fail(reader, "it has a code that does not exist");
    return 0;
}

static void take_match(reader_t *reader, uint32_t symbol, const code_t *distances)
{
    const uint32_t l = symbol - END_OF_BLOCK - 1;
    if (l >= LENGTHS) {
        (void)fail(reader, "it has a length that does not exist");
        return;
    }
    size_t length = length_base[l] + take_bits(reader, length_extra[l]);
    const uint32_t d = take_symbol(reader, distances);
    if (d >= DISTANCES) {
        (void)fail(reader, "it has a distance that does not exist");
        return;
    }
    const size_t distance = distance_base[d] + take_bits(reader, distance_extra[d]);
    if (distance > reader->length)
        (void)fail(reader, "it refers to what is before its beginning");
    for (; length > 0 && !reader->wrong; length--)
        put_byte(reader, reader->out[reader->length - distance]);
}

static void take_coded(reader_t *reader, const code_t *literals, const code_t *distances)
{
    while (!reader->wrong) {
        const uint32_t symbol = take_symbol(reader, literals);
        if (reader->wrong || symbol == END_OF_BLOCK)
            return;
        if (symbol < END_OF_BLOCK)
            put_byte(reader, (unsigned char)symbol);
        else
            take_match(reader, symbol, distances);
    }
}

static void take_fixed(reader_t *reader)
{
    uint8_t lengths[LITERALS];
    code_t literals, distances;
    for (int s = 0; s < LITERALS; s++)
        lengths[s] = s < 144 ? 8 : s < 256 ? 9 : s < 280 ? 7 : 8;
    (void)make_code(&literals, lengths, LITERALS);
    memset(lengths, 5, DISTANCES);
    (void)make_code(&distances, lengths, DISTANCES);
    take_coded(reader, &literals, &distances);
}

/* The lengths of both codes, which are themselves in a code. */
static bool take_lengths(reader_t *reader, const code_t *code, uint8_t *lengths, uint32_t count)
{
    for (uint32_t i = 0; i < count && !reader->wrong;) {
        const uint32_t symbol = take_symbol(reader, code);
        if (symbol < 16) {
            lengths[i++] = (uint8_t)symbol;
            continue;
        }
        if (symbol == 16 && i == 0)
            return fail(reader, "it repeats nothing");
        const uint8_t value = symbol == 16 ? lengths[i - 1] : 0;
        uint32_t times = symbol == 16   ? 3 + take_bits(reader, 2)
                         : symbol == 17 ? 3 + take_bits(reader, 3)
                                        : 11 + take_bits(reader, 7);
        if (times > count - i)
            return fail(reader, "it has too many lengths");
        while (times-- > 0)
            lengths[i++] = value;
    }
    return !reader->wrong;
}

static void take_dynamic(reader_t *reader)
{
    static const uint8_t order[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                      11, 4,  12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[LITERALS + 32] = {0};
    code_t literals, distances;
    const uint32_t nliterals = take_bits(reader, 5) + 257, ndistances = take_bits(reader, 5) + 1;
    const uint32_t norder = take_bits(reader, 4) + 4;
    if (nliterals > 286 || ndistances > DISTANCES) {
        (void)fail(reader, "it has too many codes");
        return;
    }
    for (uint32_t i = 0; i < norder; i++)
        lengths[order[i]] = (uint8_t)take_bits(reader, 3);
    if (!make_code(&literals, lengths, 19)) {
        (void)fail(reader, "it has a code that is none");
        return;
    }
    memset(lengths, 0, sizeof(lengths));
    const code_t code = literals;
    if (!take_lengths(reader, &code, lengths, nliterals + ndistances))
        return;
    if (lengths[END_OF_BLOCK] == 0 || !make_code(&literals, lengths, nliterals) ||
        !make_code(&distances, lengths + nliterals, ndistances))
        (void)fail(reader, "it has a code that is none");
    take_coded(reader, &literals, &distances);
}

static void take_stored(reader_t *reader)
{
    reader->bits = 0; /* the rest of a byte */
    reader->count = 0;
    const uint32_t length = take_bits(reader, 16), turned = take_bits(reader, 16);
    if (!reader->wrong && (length ^ turned) != 0xffff)
        (void)fail(reader, "it has a block of no length");
    if (!reader->wrong && reader->bytes - reader->at < length)
        (void)fail(reader, "it ends too early");
    for (uint32_t i = 0; i < length && !reader->wrong; i++)
        put_byte(reader, reader->data[reader->at++]);
}

/* Skips the head of the file, with the name and what else it may have. */
static void take_head(reader_t *reader)
{
    enum { HAS_CRC = 2, HAS_EXTRA = 4, HAS_NAME = 8, HAS_COMMENT = 16 };
    if (reader->bytes < 10 + TRAILER || !lap_is_gzip(reader->data, reader->bytes)) {
        (void)fail(reader, "it is not one of gzip");
        return;
    }
    const unsigned flags = reader->data[3];
    reader->at = 10;
    if (flags & HAS_EXTRA)
        for (uint32_t left = take_bits(reader, 16); left > 0 && !reader->wrong; left--)
            (void)take_bits(reader, 8);
    for (unsigned flag = HAS_NAME; flag <= HAS_COMMENT; flag <<= 1)
        while ((flags & flag) && !reader->wrong && take_bits(reader, 8) != 0)
            ;
    if (flags & HAS_CRC)
        (void)take_bits(reader, 16);
}

static void take_blocks(reader_t *reader)
{
    bool last = false;
    while (!last && !reader->wrong) {
        last = take_bits(reader, 1);
        switch (take_bits(reader, 2)) {
        case 0:
            take_stored(reader);
            break;
        case 1:
            take_fixed(reader);
            break;
        case 2:
            take_dynamic(reader);
            break;
        default:
            (void)fail(reader, "it has a block of no kind");
            break;
        }
    }
    reader->bits = 0;
    reader->count = 0;
}

lap_status_t lap_gunzip(const char *path, const void *data, size_t bytes, size_t most,
                        char **text_p, size_t *length_p)
{
    reader_t reader = {.data = data, .bytes = bytes, .most = most};
    take_head(&reader);
    take_blocks(&reader);
    uint32_t crc = take_bits(&reader, 16);
    crc |= take_bits(&reader, 16) << 16;
    uint32_t length = take_bits(&reader, 16);
    length |= take_bits(&reader, 16) << 16;
    if (!reader.wrong && (crc != crc_of(reader.out, reader.length) ||
                          length != (uint32_t)(reader.length & 0xffffffffu)))
        (void)fail(&reader, "its sum is another one");
    if (!reader.wrong) {
        put_byte(&reader, 0);
        reader.length--;
    }
    if (reader.wrong) {
        lap_free(reader.out);
        return reader.no_memory
                   ? lap_error(LAP_ERR_NO_MEMORY, "no memory to decompress %s", path)
                   : lap_error(LAP_ERR_INVALID, "%s is damaged: %s", path, reader.wrong);
    }
    *text_p = (char *)reader.out;
    *length_p = reader.length;
    return LAP_OK;
}
