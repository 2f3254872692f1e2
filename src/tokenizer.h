/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer: text to token ids, as a checkpoint's tokenizer.json says.  Floor 1.
 *
 * Byte-level BPE as DeepSeek-V3 and -V4 use it; the ids are those of the Python library `tokenizers` (0.23)
 * for the same file.  A component or option that is not supported is refused by its name when the tokenizer
 * is opened: see pretokenize.h, pattern.h, bpe.h and added.h.  Of normalizers only null and an empty
 * Sequence are taken; "truncation" and "padding" must be null.  No chat template is applied.
 *
 * Special tokens around the text (add_special):
 *   1. The post_processor says what comes before and after: TemplateProcessing ("single"), ByteLevel
 *      (nothing), Sequence of these, or null (nothing).
 *   2. tokenizer_config.json, where it has them, decides instead: add_bos_token for what comes before
 *      (true: bos_token alone; false: nothing), add_eos_token likewise for what comes after.  bos_token and
 *      eos_token are a text or an object with "content".
 * So it is for the released DeepSeek-V3 and R1 files, whose post_processor is a ByteLevel and whose
 * configuration says add_bos_token: true: one <begin of sentence> in front.  This is what transformers 4 does
 * with them; transformers 5 leaves add_bos_token aside where there is a tokenizer.json.  A text that begins
 * with the BOS token itself gets another one: pass add_special = 0 for such a text.
 */
#ifndef LF_TOKENIZER_H
#define LF_TOKENIZER_H

#include "base.h"

typedef struct lf_tokenizer lf_tokenizer;

/* Read DIR/tokenizer.json and, if there is one, DIR/tokenizer_config.json. */
int lf_tokenizer_open(lf_tokenizer **out, const char *model_dir, lf_err *err);
/* The same from memory.  config: the text of tokenizer_config.json, or NULL.  where: for messages. */
int lf_tokenizer_parse(lf_tokenizer **out, const char *json, size_t bytes, const char *config,
                       const char *where, lf_err *err);
void lf_tokenizer_close(lf_tokenizer *t);  /* NULL is allowed */

/* The ids of UTF-8 text (0 bytes are text).  *ids belongs to the caller, free(); it is never NULL on
 * success, *n may be 0.  Fails on invalid UTF-8, with the offset, and on texts of 2 GiB and more.  Any
 * number of threads may encode with one tokenizer. */
int lf_tokenizer_encode(const lf_tokenizer *t, const char *text, size_t bytes, int add_special,
                        uint32_t **ids, int64_t *n, lf_err *err);

/* SHA-256 of tokenizer.json, 64 lower-case hexadecimal digits; belongs to the tokenizer. */
const char *lf_tokenizer_sha256(const lf_tokenizer *t);
/* Largest id + 1.  Every id that encode gives is below. */
int64_t lf_tokenizer_vocab(const lf_tokenizer *t);

#endif
