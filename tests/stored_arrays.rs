//! Parts of arrays in files.

use std::path::{Path, PathBuf};

use spmd_run::dtype::DType;
use spmd_run::host_array::npz::{open_npy, open_npz, read_npz, write_npz};
use spmd_run::host_array::{Fill, HostArray, StoredArray, safetensors};

fn numpy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/numpy").join(name)
}

/// The part `[1:2, 0:2, 1:4]` of an array of 2 × 3 × 4 elements.
fn part_of(whole: &HostArray) -> HostArray {
    let size = whole.dtype().size();
    let at = |row: usize| &whole.data()[(12 + row * 4 + 1) * size..][..3 * size];
    HostArray::new(whole.dtype(), vec![1, 2, 3], [at(0), at(1)].concat()).unwrap()
}

fn read_part(stored: &StoredArray, dtype: DType) -> HostArray {
    stored.read(dtype, &[2, 3, 4], &[1..2, 0..2, 1..4]).unwrap()
}

#[test]
fn parts_of_what_numpy_wrote() {
    // Stored, compressed in Fortran's order, and of the other order of bytes.
    for file in ["types.npz", "fortran.npz", "big_endian.npz"] {
        let mut whole = read_npz(&numpy(file)).unwrap();
        for (name, stored) in open_npz(&numpy(file)).unwrap() {
            let dtype: DType = name.parse().unwrap();
            let whole = whole.remove(&name).unwrap().into_host_array(dtype, &[2, 3, 4]).unwrap();
            assert_eq!(read_part(&stored, dtype), part_of(&whole), "{file}: {name}");
            assert_eq!(stored.read(dtype, &[2, 3, 4], &[0..2, 0..3, 0..4]).unwrap(), whole, "{file}: {name}");
        }
    }
    let array = open_npy(&numpy("bf16.npy")).unwrap();
    assert_eq!((array.dtype(), array.dims()), (None, &[3][..]));
    assert_eq!(array.read(DType::BF16, &[3], std::slice::from_ref(&(1..3))).unwrap().to_string(), "[2.0 3.0]");
}

#[test]
fn parts_of_what_we_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let (tensors, archive) = (folder.path().join("all.safetensors"), folder.path().join("all.npz"));
    let random = |dtype: DType, dims: &[usize]| {
        HostArray::filled(Fill::Random { seed: 1 }, dtype as usize, dtype, dims).unwrap()
    };
    let mut arrays: Vec<(String, HostArray)> =
        DType::all().map(|dtype| (dtype.to_string(), random(dtype, &[2, 3, 4]))).collect();
    arrays.push(("scalar".to_owned(), HostArray::scalar(2.5f64)));
    arrays.push(("empty".to_owned(), random(DType::C128, &[3, 0])));
    safetensors::write(&tensors, &arrays).unwrap();
    write_npz(&archive, arrays.iter().map(|(name, array)| (name.clone(), array))).unwrap();
    for stored in [safetensors::open(&tensors).unwrap(), open_npz(&archive).unwrap()] {
        assert_eq!(stored.len(), arrays.len());
        for (name, whole) in &arrays {
            let ranges: Vec<_> = whole.dims().iter().map(|&dim| 0..dim).collect();
            let read = stored[name].read(whole.dtype(), whole.dims(), &ranges).unwrap();
            let of_narrow = whole.dtype().bits() < 8;
            assert!(of_narrow || read == *whole, "{name}");
            if whole.dims() == [2, 3, 4] && !of_narrow {
                assert_eq!(read_part(&stored[name], whole.dtype()), part_of(whole), "{name}");
            }
        }
    }
    let again = safetensors::write(&tensors, &arrays).unwrap_err().to_string();
    assert!(again.ends_with("all.safetensors: File exists (os error 17)"), "{again}");
}

#[test]
fn what_is_not_there_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let array = HostArray::from_elements(&[2, 3], &[0f32; 6]).unwrap();
    safetensors::write(&path, &[("w".to_owned(), array)]).unwrap();
    let place = folder.path().display().to_string();
    let stored = &safetensors::open(&path).unwrap()["w"];
    let error = |dtype, dims: &[usize], ranges: &[std::ops::Range<usize>]| {
        stored.read(dtype, dims, ranges).unwrap_err().to_string().replace(&place, "")
    };
    insta::assert_snapshot!(error(DType::BF16, &[2, 3], &[0..1, 0..1]), @"/a.safetensors: w is f32[2,3], the program's is bf16[2,3]");
    insta::assert_snapshot!(error(DType::F32, &[2, 4], &[0..1, 0..1]), @"/a.safetensors: w is f32[2,3], the program's is f32[2,4]");
    insta::assert_snapshot!(error(DType::F32, &[2, 3], &[0..1, 2..4]), @"/a.safetensors: w: [0..1, 2..4] is no part of f32[2,3]");

    let whole = std::fs::read(&path).unwrap();
    let mut messages = String::new();
    let long = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let not_json = [&3u64.to_le_bytes()[..], b"[1]"].concat();
    let beyond =
        [&60u64.to_le_bytes()[..], br#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}     "#].concat();
    let wrong = [&60u64.to_le_bytes()[..], br#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,12]}}     "#].concat();
    for bytes in [&whole[..4], &whole[..20], &whole[..whole.len() - 1], &long, &not_json, &beyond, &wrong] {
        std::fs::write(&path, bytes).unwrap();
        let error = safetensors::open(&path).unwrap_err().to_string();
        messages += &format!("{}\n", error.replace(&place, ""));
    }
    insta::assert_snapshot!(messages, @"
    /a.safetensors: not a safetensors file, or not whole: it ends in the length of its header
    /a.safetensors: not a safetensors file, or not whole: a header of 64 bytes in a file of 20
    /a.safetensors: not a safetensors file, or not whole: its arrays end at byte 96, the file at 95
    /a.safetensors: not a safetensors file, or not whole: a header of 18446744073709551615 bytes in a file of 10
    /a.safetensors: not a safetensors file, or not whole: invalid type: sequence, expected struct HashMetadata at line 1 column 0
    /a.safetensors: not a safetensors file, or not whole: its arrays end at byte 84, the file at 68
    /a.safetensors: not a safetensors file, or not whole: invalid shape, data type, or offset for tensor
    ");
}

#[test]
fn random_damage_never_panics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let array = HostArray::from_elements(&[2, 3], &[0f32; 6]).unwrap();
    safetensors::write(&path, &[("w".to_owned(), array.clone()), ("v".to_owned(), array)]).unwrap();
    let (tensors, archive) = (std::fs::read(&path).unwrap(), std::fs::read(numpy("fortran.npz")).unwrap());
    let damaged = folder.path().join("damaged");
    let mut random = 1u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % below
    };
    for _ in 0..300 {
        for original in [&tensors, &archive] {
            let mut bytes = original.clone();
            for _ in 0..1 + next(3) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            std::fs::write(&damaged, &bytes).unwrap();
            for opened in [safetensors::open(&damaged), open_npz(&damaged)].into_iter().flatten() {
                for stored in opened.values() {
                    let Some(dtype) = stored.dtype() else { continue };
                    let ranges: Vec<_> = stored.dims().iter().map(|&dim| 0..dim.min(2)).collect();
                    let _ = stored.read(dtype, stored.dims(), &ranges);
                }
            }
        }
    }
}
