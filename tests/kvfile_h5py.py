#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run by t_kvh5py with the directory it made (which goes away at the end): the files as h5py shows them."""
import hashlib
import json
import os
import shutil
import sys

import h5py
import numpy as np

count = failed = 0


def check(ok, what):
    global count, failed
    count += 1
    failed += not ok
    print("%sok %d - %s" % ("" if ok else "not ", count, what), flush=True)


def crc_table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


CRC = crc_table()


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = c >> 8 ^ CRC[(c ^ b) & 255]
    return c ^ 0xFFFFFFFF


def stored(ds, rows):
    """The bytes that a checksum is over, by the recipe in kvfile.h."""
    x = ds[rows]
    if x.dtype == "f4" and ds.id.get_type().get_size() == 2:
        x = (x.view("<u4") >> 16).astype("<u2")
    return x.tobytes()


def e4m3(b):
    s, e, m = b >> 7, b >> 3 & 15, b & 7
    if e == 15 and m == 7:
        return np.nan
    return (-1) ** s * (m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))


E4M3 = np.array([e4m3(b) for b in range(256)], np.float32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e8m0(b):
    return np.ldexp(np.float32(1), b.astype(np.int32) - 127)


def decode(g, part, kv_dtype):
    """Rows of a part as float32."""
    if kv_dtype != "fp8":
        return g[part][...]
    scale = e8m0(g[part + "_scale"][...])
    if part == "index":
        codes = g["index_codes"][...]
        x = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
        return E2M1[x] * np.repeat(scale, 32, axis=1)
    nope = E4M3[g[part + "_nope"][...]]
    return np.concatenate([nope * np.repeat(scale, nope.shape[1] // scale.shape[1], axis=1),
                           g[part + "_rope"][...]], axis=1)


def datasets(f):
    found = {}
    f.visititems(lambda name, o: found.update({name: o}) if isinstance(o, h5py.Dataset) else None)
    return found


def checksums(f):
    bad, chunked = [], 0
    for name, ds in datasets(f).items():
        if name.endswith("_crc32c"):
            continue
        if "rows_per_chunk" in ds.attrs:
            rows, sums, chunked = int(ds.attrs["rows_per_chunk"]), f[name + "_crc32c"][...], chunked + 1
            if ds.chunks[0] != rows:
                bad.append(name + ": rows_per_chunk is not the chunk's")
        else:
            rows, sums = max(1, len(ds)), [ds.attrs["crc32c"]]
        if len(sums) != max(1, -(-len(ds) // rows)):
            bad.append(name + ": number of checksums")
        bad += ["%s, chunk %d" % (name, i) for i, want in enumerate(sums)
                if crc32c(stored(ds, slice(i * rows, (i + 1) * rows))) != want]
    return bad, chunked


def labels(f):
    return [name for name, ds in datasets(f).items() for d in ds.dims if not d.label]


def pages(f):
    ids, digest, out = f["tokens"][...], b"", []
    for i in range(0, len(ids), 256):
        digest = hashlib.sha256(digest + ids[i:i + 256].astype("<u4").tobytes()).digest()
        out.append(list(digest))
    return np.array(out, np.uint8)


def floats(where, f, name):
    bad = compared = 0
    for layer, g in f["layers"].items():
        for part in "swa", "compressed", "index":
            path = "%s/%s_%d_%s.f32" % (where, name, int(layer), part)
            if os.path.exists(path):
                want = np.fromfile(path, np.uint32)
                have = np.ascontiguousarray(decode(g, part, name), np.float32).view(np.uint32).ravel()
                nan = np.isnan(want.view(np.float32)) & np.isnan(have.view(np.float32))
                bad += len(want) != len(have) or np.count_nonzero((want != have) & ~nan)
                compared += len(want)
    return bad, compared


def identity(f, name):
    a, j = f.attrs, json.loads(f.attrs["identity"])
    check(a["format"] == "longfill-kv" and a["format_version"] == 1 and a["complete"] == 1, name + ": format")
    check(a["custom_id"] == "\u00e4/1" and a["num_tokens"] == 300, name + ": custom_id and num_tokens are str and int")
    check(hashlib.sha256(a["config"].encode()).hexdigest() == a["config_sha256"], name + ": config_sha256")
    check(all(a[k] == v for k, v in j.items()), name + ": the identity says what the attributes say")
    check(a["kv_dtype"] == name and a["model_type"] == json.loads(a["config"])["model_type"], name + ": model")
    check(("tokenizer_sha256" in a) == (name != "f32"), name + ": tokenizer_sha256 when there was one")


def shapes(f, name):
    want = {"swa": (8, 32), "compressed": (75, 32), "state/main/open_kv": (0, 64), "state/main/prev_gate": (4, 32),
            "state/index/open_gate": (0, 64), "state/index/prev_kv": (4, 32), "index": (75, 32)}
    if name == "fp8":
        for part, rows in ("swa", 8), ("compressed", 75):
            del want[part]
            want.update({part + "_nope": (rows, 16), part + "_scale": (rows, 1), part + "_rope": (rows, 16)})
        del want["index"]
        want.update({"index_codes": (75, 16), "index_scale": (75, 1)})
    g = f["layers/001"]
    check(all(g[k].shape == v for k, v in want.items()), name + ": shapes of a ratio-4 layer")
    check(f["layers/002/state/main/open_kv"].shape == (44, 32), name + ": the open block of a ratio-128 layer")
    first = [k for k in f["layers/000"] if "crc32c" not in k]
    check(first == (["swa_nope", "swa_rope", "swa_scale"] if name == "fp8" else ["swa"]),
          name + ": a pure window layer holds its window only")
    kinds = [(l.attrs["kind"], int(l.attrs["ratio"]), float(l.attrs["rope_theta"])) for l in f["layers"].values()]
    check(kinds == [("swa", 0, 1e4), ("c4", 4, 1.6e5), ("c128", 128, 1.6e5), ("c4", 4, 1.6e5)], name + ": kinds")
    check(sorted(f["frontiers"], key=int) == ["128", "256"], name + ": frontiers")
    check("compressed" not in f["frontiers/128/layers/001"], name + ": compressed rows are not repeated")
    check(f["logits/last"].shape == (96,) and f["logits/topk_ids"].shape == (300, 5) and
          f["logits/logprob"].shape == (300,) and "all" not in f["logits"], name + ": logits")


def marks(f, name):
    g = f["layers/001"]
    window = g["swa_nope" if name == "fp8" else "swa"]
    index = g["index_codes" if name == "fp8" else "index"]
    check(window.attrs["first_position"] == 292, name + ": first_position")
    check(index.attrs.get("transform") == (None if name == "f32" else "hadamard"), name + ": transform of the index")
    check([d.label for d in g["state/main/prev_kv"].dims] == ["token", "channel"], name + ": labels of state rows")
    check(g["swa_rope" if name == "fp8" else "swa"].dtype == np.float32, name + ": float32 to numpy")
    if name == "fp8":
        names = [g[k].attrs["dtype"] for k in ("compressed_nope", "compressed_scale", "index_codes", "index_scale")]
        check(names == ["float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn", "float8_e8m0fnu"], "fp8: dtype attributes")
    if name == "bf16":
        t = g["swa"].id.get_type()
        check((t.get_size(), t.get_fields(), t.get_ebias()) == (2, (15, 7, 8, 0, 7), 127), "bf16: 1-8-7, bias 127")


def several(where, name):
    """The file of three writers: what that of one says, from parts whose own checksums hold."""
    with h5py.File(os.path.join(where, name + ".h5"), "r") as a, \
            h5py.File(os.path.join(where, "several-" + name + ".h5"), "r") as b:
        one = {k: d for k, d in datasets(a).items() if not k.endswith("_crc32c")}
        all_, virtual = datasets(b), [k for k, d in datasets(b).items() if d.is_virtual]
        bad = sorted(set(one) ^ {k for k in all_ if not k.endswith("_crc32c")})
        bad += [k for k in one if k in all_ and (one[k].dtype != all_[k].dtype or
                                                 one[k][()].tobytes() != all_[k][()].tobytes())]
        hidden = {"crc32c", "rows_per_chunk", "DIMENSION_LABELS"}
        bad += [k for k in one if k in all_ and {n: str(v) for n, v in one[k].attrs.items() if n not in hidden} !=
                {n: str(v) for n, v in all_[k].attrs.items() if n not in hidden}]
        check(not bad and len(virtual) > 20, "%s: %d of %d datasets of three writers are one writer's %s" %
              (name, len(virtual), len(one), bad[:3]))
        check(not labels(b), "%s: every dimension of theirs has a label %s" % (name, labels(b)[:3]))
        listed = json.loads(b["parts"].attrs["list"])
    check([p["writer"] for p in listed] == [0, 1, 2] and
          all(os.path.getsize(os.path.join(where, p["name"])) == p["bytes"] for p in listed),
          name + ": three listed parts")
    with open(os.path.join(where, listed[2]["name"]), "rb") as f:
        check(crc32c(f.read()) == listed[2]["crc32c"], name + ": the checksum of a part")
    for p in listed:
        with h5py.File(os.path.join(where, p["name"]), "r") as f:
            bad, chunked = checksums(f)
            rows = [k for k, d in datasets(f).items() if not k.endswith("_crc32c") and
                    int(np.diff(d.attrs["rows"], axis=1).sum()) != len(d)]
            check(not bad and not rows and chunked > 3, "%s: checksums and rows of part %d %s" %
                  (name, p["writer"], (bad + rows)[:3]))


def main(where):
    os.chdir("/")
    np.seterr(over="ignore")
    for name in "bf16", "fp8", "f32":
        with h5py.File(os.path.join(where, name + ".h5"), "r") as f:
            identity(f, name)
            shapes(f, name)
            marks(f, name)
            bad, chunked = checksums(f)
            check(not bad and chunked >= 10, "%s: checksums, %d datasets in chunks %s" % (name, chunked, bad[:3]))
            check(not labels(f), "%s: every dimension has a label %s" % (name, labels(f)[:3]))
            check(np.array_equal(f["page_hash"][...], pages(f)), name + ": page_hash")
            bad, compared = floats(where, f, name)
            check(bad == 0 and compared > 4000, "%s: %d values as longfill decodes them" % (name, compared))
        several(where, name)
    print("1..%d" % count)
    shutil.rmtree(where)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
