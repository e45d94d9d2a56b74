//! Models in several files.

use std::path::{Path, PathBuf};

use ls_model::gguf::write::Writer;
use ls_model::{ModelError, ModelFile};
use tempfile::TempDir;

use crate::support::{Tiny, add_zeros, sentence};

const N: usize = 3;

pub fn shard(dir: &Path, idx: usize) -> PathBuf {
    dir.join(format!("tiny-{:05}-of-{N:05}.gguf", idx + 1))
}

/// The parts of a model: only the first has all metadata, as the usual tool splits them.
pub fn parts(n_tensors: Option<u32>) -> Vec<Writer<'static>> {
    let tiny = Tiny::new("qwen2");
    let tensors = tiny.tensors();
    let n_tensors = n_tensors.unwrap_or(tensors.len() as u32);
    let mut parts: Vec<Writer<'static>> =
        (0..N).map(|idx| if idx == 0 { tiny.metadata() } else { Writer::new() }).collect();
    for (idx, part) in parts.iter_mut().enumerate() {
        part.value("split.no", idx as u16);
        part.value("split.count", N as u16);
        part.value("split.tensors.count", n_tensors as i32);
    }
    for (idx, (name, shape, dtype)) in tensors.iter().enumerate() {
        add_zeros(&mut parts[idx % N], name, *dtype, shape);
    }
    parts
}

pub fn folder(parts: &[Writer<'_>]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (idx, part) in parts.iter().enumerate() {
        part.write(&shard(dir.path(), idx)).unwrap();
    }
    dir
}

#[test]
fn any_part_opens_the_whole() {
    let dir = folder(&parts(None));
    let n_tensors = Tiny::new("qwen2").tensors().len();
    for idx in 0..N {
        let model = ModelFile::open(shard(dir.path(), idx)).unwrap();
        assert_eq!(model.tensors().len(), n_tensors);
        assert_eq!(model.files().len(), N);
        assert_eq!(model.files().next().unwrap(), shard(dir.path(), 0));
        assert_eq!(model.config().name, "tiny");
        let last = model.tensor("blk.1.ffn_down.weight").unwrap().unwrap();
        assert_eq!(last.data.len(), 64 * 160 * 2);
    }
}

#[test]
fn faults_of_parts_are_named() {
    let mut sentences = Vec::new();
    let mut complain = |parts: &[Writer<'_>], change: &dyn Fn(&Path) -> PathBuf| {
        let dir = folder(parts);
        let error = ModelFile::open(change(dir.path())).unwrap_err();
        sentences.push(sentence(&error, dir.path()));
    };
    complain(&parts(None), &|dir| {
        std::fs::remove_file(shard(dir, 1)).unwrap();
        shard(dir, 2)
    });
    complain(&parts(None), &|dir| {
        let renamed = dir.join("renamed.gguf");
        std::fs::rename(shard(dir, 0), &renamed).unwrap();
        renamed
    });
    complain(&parts(None), &|dir| {
        std::fs::copy(shard(dir, 2), shard(dir, 1)).unwrap();
        shard(dir, 0)
    });
    complain(&parts(Some(99)), &|dir| shard(dir, 0));
    let mut twice = parts(None);
    let tiny = Tiny::new("qwen2");
    add_zeros(&mut twice[1], "token_embd.weight", tiny.matrix, &[tiny.vocab, tiny.d_model]);
    complain(&twice, &|dir| shard(dir, 0));
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn a_missing_part_is_a_typed_error() {
    let dir = folder(&parts(None));
    std::fs::remove_file(shard(dir.path(), 2)).unwrap();
    match ModelFile::open(shard(dir.path(), 0)) {
        Err(ModelError::MissingShard { missing, n_shards: N, .. }) => {
            assert_eq!(missing, shard(dir.path(), 2));
        }
        other => panic!("{other:?}"),
    }
}
