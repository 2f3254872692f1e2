#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything a user can get wrong before a prefill: each bad input ends the run with its exit code and exactly one line
on standard error that names the file, the line, the tensor or the option; nothing goes to standard output, and nothing
with a final name is left behind."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""          # "a device that is not there" is not there on any machine

import numpy as np

SRC = os.environ.get("srcdir", ".")
LONGFILL = os.environ.get("LONGFILL", "./longfill")
MPI_RUN = os.environ.get("MPI_RUN", "sh %s/mpi-run" % SRC).split()
TINY = os.path.join(SRC, "..", "data", "tiny")
SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"
GOOD = [{"custom_id": "a", "token_ids": [1, 2, 3]}]
ENV = dict(os.environ, OMPI_MCA_ess_singleton_isolated="1", OMP_NUM_THREADS="1",
           ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")       # those of MPI, as in mpi-run

top = tempfile.mkdtemp()
count = failed = 0


class Case:
    """One directory with a good model, a good prompts file and an output directory still to be made."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(dir=top)
        self.model = os.path.join(self.dir, "model")
        shutil.copytree(TINY, self.model)
        for name in os.listdir(self.model):
            os.chmod(os.path.join(self.model, name), 0o644)
        self.prompts = os.path.join(self.dir, "prompts")
        self.out = os.path.join(self.dir, "out")
        self.lines(*GOOD)
        self.args = []

    def path(self, name):
        return os.path.join(self.model, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def config(self, **fields):
        c = json.loads(self.read("config.json"))
        for key, value in fields.items():
            if value is None:
                del c[key]
            else:
                c[key] = value
        self.write("config.json", json.dumps(c, indent=1))

    def header(self, change):
        """Changes the table of tensors of the shard; its data stay."""
        data = self.read(SHARD)
        n = struct.unpack("<Q", data[:8])[0]
        table = json.loads(data[8:8 + n])
        text = change(table) or json.dumps(table)
        text += " " * (-len(text) % 8)
        self.write(SHARD, struct.pack("<Q", len(text)) + text.encode() + data[8 + n:])

    def tensor_data(self, name, data):
        whole = bytearray(self.read(SHARD))
        n = struct.unpack("<Q", whole[:8])[0]
        at = 8 + n + json.loads(whole[8:8 + n])[name]["data_offsets"][0]
        whole[at:at + len(data)] = data
        self.write(SHARD, bytes(whole))

    def index(self, change):
        index = json.loads(self.read(INDEX))
        change(index)
        self.write(INDEX, json.dumps(index))

    def lines(self, *lines):
        with open(self.prompts, "wb") as f:
            for line in lines:
                f.write(line if isinstance(line, bytes) else
                        (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n")

    def run(self, launch):
        args = ["prefill"]
        for option, value in (("-m", self.model), ("-i", self.prompts), ("-o", self.out)):
            args += [option, value] if option not in self.args else []
        args += ["--device", "cpu"] if "--device" not in self.args else []
        return subprocess.run(launch + [LONGFILL] + args + self.args, capture_output=True, env=ENV, timeout=60,
                              errors="replace", text=True, stdin=subprocess.DEVNULL)

    def final_names(self):
        return [os.path.join(where, name) for where, _, names in os.walk(self.dir) for name in names
                if name.endswith(".h5") or name.startswith("report")]


def result(problems, what):
    global count, failed
    count += 1
    failed += bool(problems)
    print("%sok %d - %s" % ("not " if problems else "", count, what))
    for text in problems:
        print("# " + text.replace("\n", "\n# "))


def problems_of(case, done, code, words):
    lines = done.stderr.splitlines()
    found = []
    if done.returncode != code:
        found.append("exit %d, expected %d" % (done.returncode, code))
    if len(lines) != 1 or not lines[0].startswith("longfill: "):
        found.append("%d lines on standard error" % len(lines))
    for word in words:
        if not re.search(word, done.stderr):
            found.append("standard error does not have: " + word)
    if done.stdout:
        found.append("standard output has: " + done.stdout[:200])
    if case.final_names():
        found.append("left behind: %s" % case.final_names())
    return found + (["standard error: " + done.stderr[:1500]] if found else [])


def bad(what, change, *words, code=2, launch=()):
    """change(case) makes one thing wrong; the line on standard error has all the words (patterns)."""
    case = Case()
    change(case)
    result(problems_of(case, case.run(list(launch)), code, words), what)
    shutil.rmtree(case.dir, ignore_errors=True)


def config(**fields):
    return lambda c: c.config(**fields)


def lines(*text):
    return lambda c: c.lines(*text)


def args(*words):
    def change(c):
        c.args = [w.replace("{dir}", c.dir) for w in words]
    return change


def prompt(**fields):
    return lambda c: c.lines(GOOD[0], dict({"custom_id": "b"}, **fields))


def retype(name, **fields):
    return lambda c: c.header(lambda t: t[name].update(fields))


# ---- configurations
bad("no config.json", lambda c: os.remove(c.path("config.json")), "config.json", "No such file")
bad("an empty config.json", lambda c: c.write("config.json", ""), "config.json")
bad("a config.json that is a directory", lambda c: (os.remove(c.path("config.json")), os.mkdir(c.path("config.json"))),
    "config.json", "not a regular file")
bad("a syntax error in config.json", lambda c: c.write("config.json", '{\n "model_type": "deepseek_v4",\n oops'),
    "config.json", "line 3|:3")
bad("an array for a config", lambda c: c.write("config.json", "[]"), "config.json", "object")
bad("a field given twice", lambda c: c.write("config.json", c.read("config.json").decode().replace(
    '"hidden_size": 64', '"hidden_size": 64, "hidden_size": 64')), "config.json", "hidden_size")
bad("an unknown architecture", config(architectures=["LlamaForCausalLM"], model_type="llama"), "config.json",
    "Llama", "DeepseekV4ForCausalLM")
bad("no hidden_size", config(hidden_size=None), "config.json", "hidden_size")
bad("a text for a number", config(hidden_size="64"), "config.json", "hidden_size", '"64"')
bad("a number of zero", config(num_attention_heads=0), "config.json", "num_attention_heads")
bad("a number beyond all bounds", config(vocab_size=10**18), "config.json", "vocab_size")
bad("groups that do not divide the heads", config(o_groups=3), "config.json", "o_groups", "num_attention_heads")
bad("more experts per token than experts", config(num_experts_per_tok=7), "config.json", "num_experts_per_tok")
bad("a rotated part wider than a head", config(qk_rope_head_dim=64), "config.json", "qk_rope_head_dim")
bad("a schedule too short", config(compress_ratios=[0, 4]), "config.json", "compress_ratios")
bad("an unknown compression ratio", config(compress_ratios=[0, 4, 16, 4]), "config.json", "compress_ratios", "16")
bad("two schedules that differ", config(layer_types=["sliding_attention"] * 4), "config.json", "layer_types",
    "compress_ratios")
bad("an unknown scaling of positions", config(rope_scaling={"type": "dynamic", "factor": 2}), "config.json",
    "rope_scaling", "dynamic")

# ---- weights
bad("no weights", lambda c: (os.remove(c.path(SHARD)), os.remove(c.path(INDEX))), "model", "safetensors")
bad("a missing shard", lambda c: os.remove(c.path(SHARD)), SHARD)
bad("a broken index", lambda c: c.write(INDEX, '{"weight_map": {'), INDEX)
bad("an index without weight_map", lambda c: c.write(INDEX, "{}"), INDEX, "weight_map")
bad("a shard outside of the directory", lambda c: c.index(
    lambda i: i["weight_map"].update({"norm.weight": "../other.safetensors"})), INDEX, "norm.weight", r"\.\./other")
bad("a tensor that its shard does not have", lambda c: c.index(
    lambda i: i["weight_map"].update({"layers.9.attn.sink": SHARD})), "layers.9.attn.sink", SHARD)
bad("an empty shard", lambda c: c.write(SHARD, b""), SHARD)
bad("a truncated shard", lambda c: c.write(SHARD, c.read(SHARD)[:-100]), SHARD)
bad("a shard cut inside of its header", lambda c: c.write(SHARD, c.read(SHARD)[:500]), SHARD)
bad("a header longer than any file", lambda c: c.write(SHARD, b"\xff" * 7 + b"\x7f" + c.read(SHARD)[8:]), SHARD)
bad("a header that is not JSON", lambda c: c.header(lambda t: "{]"), SHARD)
bad("tensors that overlap", lambda c: c.header(lambda t: t["norm.weight"].update(
    data_offsets=t["embed.weight"]["data_offsets"][:1] + [t["embed.weight"]["data_offsets"][0] + 128])),
    SHARD, "norm.weight|embed.weight")
bad("a tensor whose bytes are not its shape's", retype("norm.weight", shape=[63]), SHARD, "norm.weight")
bad("a tensor of an unknown type", retype("norm.weight", dtype="Q4_K"), SHARD, "norm.weight", "Q4_K")
bad("a tensor of a wrong type", retype("layers.0.hc_attn_scale", dtype="I32"), "layers.0.hc_attn_scale", "I32")
bad("a tensor of a wrong shape", retype("layers.0.attn.wq_a.weight", shape=[64, 32]), "layers.0.attn.wq_a.weight",
    "64")


def without(name):
    def change(c):
        c.header(lambda t: t.update({name + ".unused": t.pop(name)}))
        c.index(lambda i: i["weight_map"].update({name + ".unused": i["weight_map"].pop(name)}))
    return change


bad("a missing tensor", without("layers.1.attn.wkv.weight"), r"layers\.1\.attn\.wkv\.weight")
bad("a missing scale", without("layers.1.attn.wkv.scale"), r"layers\.1\.attn\.wkv\.")
bad("a hash table with an expert that is not there", lambda c: c.tensor_data(
    "layers.0.ffn.gate.tid2eid", struct.pack("<q", 77)), r"layers\.0\.ffn\.gate\.tid2eid", "77", code=1)

# ---- weights that are no numbers and that no output would show
bad("NaN in a bias of the router", lambda c: c.tensor_data("layers.2.ffn.gate.bias", b"\0\0\0\0\0\0\xc0\x7f"),
    r"layers\.2\.ffn\.gate\.bias: value 1 is NaN", code=1)
bad("NaN in the indexer's weights", lambda c: c.tensor_data("layers.1.attn.indexer.weights_proj.weight", b"\0\0\xc0\x7f"),
    r"layers\.1\.attn\.indexer\.weights_proj\.weight: value 1 is NaN", code=1)
bad("NaN in the indexer's queries", lambda c: c.tensor_data("layers.3.attn.indexer.wq_b.weight", b"\0\0\x7f"),
    r"layers\.3\.attn\.indexer\.wq_b\.weight: value 2 is NaN", code=1)
bad("a scale of the indexer that is NaN", lambda c: c.tensor_data("layers.3.attn.indexer.wq_b.scale", b"\x7f\xff"),
    r"layers\.3\.attn\.indexer\.wq_b\.weight: scale 1 is NaN", code=1)

# ---- prompts
bad("no prompts file", lambda c: os.remove(c.prompts), "prompts", "No such file")
bad("a directory for the prompts", lambda c: (os.remove(c.prompts), os.mkdir(c.prompts)), "prompts")
bad("an empty prompts file", lines(), "prompts")
bad("blank lines only", lines("", "  "), "prompts")
bad("a line that is not JSON", lines(GOOD[0], "hello"), "prompts:2")
bad("a line that is not an object", lines(GOOD[0], "[1, 2]"), "prompts:2")
bad("invalid UTF-8", lines(GOOD[0], b'{"custom_id": "b", "prompt": "\xff"}\n'), "prompts:2", "UTF-8|0xff")
bad("no custom_id", lines({"token_ids": [1]}), "prompts:1", "custom_id")
bad("the same custom_id twice", lines(GOOD[0], GOOD[0]), "prompts:2", "custom_id|\"a\"")
bad("a custom_id with a line break", lines({"custom_id": "a\nb", "token_ids": [1]}), "prompts:1", "custom_id")
bad("a custom_id without end", lines({"custom_id": "x" * 600, "token_ids": [1]}), "prompts:1", "custom_id")
bad("no prompt", prompt(), "prompts:2")
bad("an empty prompt", prompt(token_ids=[]), "prompts:2", "empty")
bad("a prompt in two forms", prompt(token_ids=[1], prompt="x"), "prompts:2", "token_ids", "prompt")
bad("a token beyond the vocabulary", prompt(token_ids=[1, 512]), "prompts:2", "512")
bad("a negative token", prompt(token_ids=[-1]), "prompts:2", "-1")
bad("half a token", prompt(token_ids=[1.5]), "prompts:2", "token_ids|1.5")
bad("an unknown key", prompt(token_ids=[1], tempo=3), "prompts:2", "tempo")
bad("a prompt longer than the positions", lambda c: (c.config(max_position_embeddings=65536, rope_scaling=None),
                                                     c.lines({"custom_id": "a", "token_ids": [1] * 65537})),
    "prompts:1", "65537", "65536")
bad("a file that is not there", prompt(file="none.txt"), "prompts:2", "none.txt")
bad("ids in a file of half words", lambda c: (open(os.path.join(c.dir, "x.bin"), "wb").write(b"12345"),
                                              c.lines({"custom_id": "a", "file": "x.bin"})), "prompts:1", "x.bin")
bad("an array of floats", lambda c: (np.save(os.path.join(c.dir, "x.npy"), np.zeros(4)),
                                     c.lines({"custom_id": "a", "file": "x.npy"})), "prompts:1", "x.npy")
bad("a text without tokenizer.json", lambda c: (os.remove(c.path("tokenizer.json")), c.lines(
    {"custom_id": "a", "prompt": "hello"})), "prompts:1", "tokenizer.json")
bad("a tokenizer of another kind", lambda c: (c.write("tokenizer.json", '{"model": {"type": "Unigram", "vocab": []}}'),
                                              c.lines({"custom_id": "a", "prompt": "hello"})), "tokenizer.json",
    "Unigram|model")
bad("a tokenizer with a syntax error", lambda c: (c.write("tokenizer.json", "{"), c.lines(
    {"custom_id": "a", "prompt": "hello"})), "tokenizer.json")

# ---- options
bad("more top logits than tokens", args("--logits", "topk:513"), "--logits", "513", "512")
bad("no top logits", args("--logits", "topk:0"), "--logits", "topk:0")
bad("a device that is not there", args("--device", "cuda"), "--device cuda")
bad("unknown numerics", args("--numerics", "fast"), "--numerics", "fast")
bad("a shard beyond the last", args("--shard", "3/3"), "--shard", "3/3")
bad("more groups than ranks", args("--dp", "3"), "dp 3", "1")
bad("no time at all", args("--max-seconds", "0"), "--max-seconds")
bad("an option that is not there", args("--temperature", "1"), "--temperature")
bad("an option for later", args("--frontier", "128"), "--frontier")
bad("more ranks to a prompt than started", args("--pcp", "2"), "pcp 2", "start 2")
bad("ranks that do not divide the experts", args("--pcp", "4"), "pcp 4", "1, 2, 3, 6")
bad("ranks that do not divide the heads", args("--tp", "3"), "tp 3", "1, 2")
bad("an attention that is not there", args("--pcp-attention", "both"), "--pcp-attention", "both")
bad("one option twice", args("--numerics", "exact", "--numerics", "exact"), "--numerics")
bad("a report where no directory is", args("--report", "{dir}/none/report.json"), "--report", "none")

# ---- the output directory
bad("a file for an output directory", lambda c: open(c.out, "w").close(), "out", "not a directory")
bad("a file above the output directory", lambda c: (open(c.out, "w").close(), setattr(c, "out", c.out + "/deeper")),
    "out", "[Nn]ot a directory")
bad("a file where kv/ goes", lambda c: (os.mkdir(c.out), open(c.out + "/kv", "w").close()), "out/kv")
bad("a directory where a KV file goes", lambda c: (c.lines({"custom_id": "a", "token_ids": [1]}),
                                                   os.makedirs(c.out + "/kv/a.h5")), "kv/a.h5", "not a regular file")
bad("a directory where results.jsonl goes", lambda c: os.makedirs(c.out + "/results.jsonl"), "results.jsonl",
    "directory")
bad("an output directory nobody can make", lambda c: setattr(c, "out", "/proc/longfill/out"), "/proc/longfill")
bad("a dry run into a file", lambda c: (open(c.out, "w").close(), args("--dry-run")(c)), "out", "not a directory")

# ---- weights that are no numbers: found in what comes out, prompt by prompt
def not_finite(what, name, data, *words, launch=()):
    case = Case()
    case.tensor_data(name, data)
    done = case.run(list(launch))
    with open(case.out + "/results.jsonl") as f:
        told = [json.loads(t) for t in f]
    kv = sorted(os.listdir(case.out + "/kv"))
    found = [] if done.returncode == 3 else ["exit %d, expected 3" % done.returncode]
    found += ["kv/ has %s" % kv] if kv else []
    found += ["results.jsonl: %s" % told] if [t["status"] for t in told] != ["failed"] else []
    found += ["no %s in %s" % (w, done.stderr) for w in words if not re.search(w, done.stderr)]
    found += ["results.jsonl has another reason: %s" % told] if told and told[0]["error"] not in done.stderr else []
    result(found, what)
    shutil.rmtree(case.dir)


not_finite("NaN in the embedding", "embed.weight", b"\xc0\x7f" * 64 * 4, "prompt a .line 1.", "layer 0: row 0 of swa",
           "not finite")
not_finite("a scale that is NaN", "layers.1.attn.wkv.scale", b"\xff", "layer 1: row 0 of swa", "not finite")
not_finite("an infinity in the head", "head.weight", b"\x80\x7f", "logits of token 2 are not finite")


# ---- two ranks say it once
two = MPI_RUN + ["-q", "-n", "2"]
bad("two ranks, a broken config", lambda c: c.write("config.json", "{"), "config.json", launch=two)
bad("two ranks, a bad prompt", prompt(token_ids=[512]), "prompts:2", launch=two)
bad("two ranks, a bad option", args("--numerics", "fast"), "--numerics", launch=two)
bad("two ranks, a bad output directory", lambda c: open(c.out, "w").close(), "out", launch=two)
bad("two ranks, a bad expert", lambda c: c.tensor_data("layers.0.ffn.gate.tid2eid", struct.pack("<q", -1)),
    "tid2eid", code=1, launch=two)


not_finite("two ranks, a scale that is NaN", "layers.1.attn.wkv.scale", b"\xff", "layer 1: row 0 of swa",
           launch=two + ["-x", "LONGFILL_CHECK_COLLECTIVES=1"])


# ---- a disk that fills up
def full_disk():
    case = Case()
    os.mkdir(case.out)
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", case.out],
                                      capture_output=True).returncode:
        global count
        count += 1
        print("ok %d - a disk that fills up # SKIP no right to mount a small one" % count)
        return
    try:
        case.lines(*[{"custom_id": "p%d" % i, "token_ids": [i + 1] * 300} for i in range(6)])
        done = case.run([])
        lines = done.stderr.splitlines()
        stored = [json.loads(t) for t in open(case.out + "/results.jsonl")]
        ok = [r["custom_id"] + ".h5" for r in stored if r["status"] == "ok"]
        there = sorted(os.listdir(case.out + "/kv"))
        result([] if done.returncode == 1 and len(lines) == 1 and
               "No space left on device; free space and run the same command" in lines[0] and
               sorted(ok) == there and len(ok) == len(stored) and 0 < len(ok) < 5 else
               ["%s %s %s" % (done.returncode, stored, there), done.stderr],
               "a disk that fills up: it ends the run; whole files or none, and no prompt is to blame")
        case.args = ["--dry-run"]
        done = case.run([])
        result([] if done.returncode == 0 and re.search("the files need .* and the file system has .* left", done.stderr)
               else ["%s" % done.returncode, done.stderr], "a dry run warns that there is not enough")
        case.args = []
        subprocess.run(["mount", "-o", "remount,size=20m", case.out], check=True)
        done = case.run([])
        result([] if done.returncode == 0 and len(os.listdir(case.out + "/kv")) == 6 else
               ["%s" % done.returncode, done.stderr], "with space the same command does the rest")
    finally:
        subprocess.run(["umount", case.out], check=True)


full_disk()
shutil.rmtree(top)
print("1..%d" % count)
sys.exit(failed != 0)
