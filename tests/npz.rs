//! Files that NumPy wrote, files that we write, and files that are neither.

use std::io::Write;
use std::path::{Path, PathBuf};

use spmd_run::dtype::DType;
use spmd_run::host_array::npz::{read_npy, read_npz, write_npz};
use spmd_run::host_array::{Fill, HostArray, compare};
use zip::write::SimpleFileOptions;

fn numpy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/numpy").join(name)
}

/// What the script beside the files puts into each array: 0 to 3 in turn, the lowest bit for 1-bit types.
fn counted(dtype: DType) -> HostArray {
    let patterns = HostArray::filled(Fill::Iota, 0, DType::U2, &[24]).unwrap().into_data();
    let table = HostArray::filled(Fill::Iota, 0, dtype, &[4]).unwrap().into_data();
    let size = dtype.size();
    let data = patterns.iter().flat_map(|&pattern| {
        let pattern = usize::from(pattern);
        table[pattern * size..(pattern + 1) * size].to_vec()
    });
    HostArray::new(dtype, vec![2, 3, 4], data.collect()).unwrap()
}

#[test]
fn every_type_is_read_in_every_form() {
    for file in ["types.npz", "fortran.npz", "big_endian.npz"] {
        let mut arrays = read_npz(&numpy(file)).unwrap();
        let native = file == "big_endian.npz";
        assert_eq!(arrays.len(), if native { 14 } else { 32 });
        for dtype in DType::all() {
            let Some(array) = arrays.remove(dtype.name()) else { continue };
            let array = array.into_host_array(dtype, &[2, 3, 4]).unwrap();
            if dtype != DType::F8E8M0FNU {
                let comparison = compare(&array, &counted(dtype), 0.0, 0.0).unwrap();
                assert!(comparison.bitwise_equal, "{file} {dtype}: {comparison}\n{array}");
            }
        }
        assert!(arrays.is_empty(), "{:?}", arrays.keys());
    }
}

#[test]
fn scalars_empty_arrays_and_odd_names_are_read() {
    let mut arrays = read_npz(&numpy("shapes.npz")).unwrap();
    let mut take =
        |name: &str, dtype, dims: &[usize]| arrays.remove(name).unwrap().into_host_array(dtype, dims).unwrap();
    assert_eq!(take("scalar", DType::F32, &[]).data(), 3.5f32.to_le_bytes());
    assert_eq!(take("empty", DType::F32, &[3, 0, 2]).num_elements(), 0);
    assert_eq!(take("name with / and ü", DType::F64, &[1]).data(), 1f64.to_le_bytes());
    let array = read_npy(&numpy("bf16.npy")).unwrap().into_host_array(DType::BF16, &[3]).unwrap();
    assert_eq!(array.to_string(), "[1.0 2.0 3.0]");
}

#[test]
fn what_is_written_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.npz");
    let shapes: [&[usize]; 4] = [&[], &[5], &[0, 3], &[2, 3, 4]];
    let arrays: Vec<(String, HostArray)> = DType::all()
        .flat_map(|dtype| shapes.map(|dims| (dtype, dims)))
        .map(|(dtype, dims)| {
            let name = format!("{dtype}_{}", dims.len() + dims.first().copied().unwrap_or(0));
            (name, HostArray::filled(Fill::Random { seed: 1 }, 0, dtype, dims).unwrap())
        })
        .collect();
    write_npz(&path, arrays.iter().map(|(name, array)| (name.clone(), array))).unwrap();
    let mut read = read_npz(&path).unwrap();
    for (name, array) in &arrays {
        let again = read.remove(name).unwrap().into_host_array(array.dtype(), array.dims()).unwrap();
        assert_eq!(&again, array, "{name}");
    }
    assert!(read.is_empty());
}

#[test]
fn arrays_of_another_type_or_shape_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inputs.npz");
    let array = HostArray::zeros(DType::F64, &[8, 4]).unwrap();
    let half = HostArray::zeros(DType::BF16, &[4]).unwrap();
    write_npz(&path, [("arg0".to_owned(), &array), ("arg1".to_owned(), &half)]).unwrap();
    let arrays = read_npz(&path).unwrap();
    let mut messages = String::new();
    for (name, dtype, dims) in [
        ("arg0", DType::F32, vec![8, 4]),
        ("arg0", DType::BF16, vec![8, 4]),
        ("arg0", DType::F64, vec![4, 8]),
        ("arg1", DType::F16, vec![4]),
        ("arg1", DType::F8E5M2, vec![4]),
        ("arg1", DType::BF16, vec![]),
    ] {
        let error = arrays[name].clone().into_host_array(dtype, &dims).unwrap_err();
        messages += &format!("{error}\n").replace(folder.path().to_str().unwrap(), "DIR");
    }
    insta::assert_snapshot!(messages, @r"
    DIR/inputs.npz: arg0 is f64[8,4], the program's is f32[8,4]: save it as .astype('float32')
    DIR/inputs.npz: arg0 is f64[8,4], the program's is bf16[8,4]: save it as an array of ml_dtypes.bfloat16
    DIR/inputs.npz: arg0 is f64[8,4], the program's is f64[4,8]
    DIR/inputs.npz: arg1 is raw V2[4], the program's is f16[4]: save it as .astype('float16')
    DIR/inputs.npz: arg1 is raw V2[4], the program's is f8e5m2[4]: save it as an array of ml_dtypes.float8_e5m2
    DIR/inputs.npz: arg1 is raw V2[4], the program's is bf16[]
    ");
}

/// An archive with one stored entry of these bytes.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    writer.start_file(name, SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored)).unwrap();
    writer.write_all(content).unwrap();
    writer.finish().unwrap().into_inner()
}

fn npy(dictionary: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((dictionary.len() as u16).to_le_bytes());
    bytes.extend(dictionary.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn hostile_files_are_clear_errors() {
    let folder = tempfile::tempdir().unwrap();
    let good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", &[0; 16]);
    let huge = "{'descr': '<f8', 'fortran_order': True, 'shape': (4294967296, 4294967296, 0, 4294967296), }";
    let cases: [(&str, Vec<u8>); 16] = [
        ("empty.npz", vec![]),
        ("text.npz", b"these are not the arrays".to_vec()),
        ("single.npz", good.clone()),
        ("truncated.npz", archive("arg0.npy", &good)[..100].to_vec()),
        ("not_npy.npz", archive("arg0.npy", b"hello")),
        ("suffix.npz", archive("readme.txt", b"hello")),
        ("control.npz", archive("\u{1b}[31m.npy", b"hello")),
        ("short.npz", archive("arg0.npy", &good[..good.len() - 1])),
        ("long.npz", archive("arg0.npy", &[&good[..], &[0]].concat())),
        ("pickle.npz", archive("arg0.npy", &npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"x"))),
        ("huge.npz", archive("arg0.npy", &npy(&huge.replace(", 0, ", ", 1, "), b""))),
        (
            "large.npz",
            archive("arg0.npy", &npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", b"")),
        ),
        ("nested.npz", archive("arg0.npy", &npy(&"(".repeat(60000), b""))),
        ("version.npy", b"\x93NUMPY\x09\x00\x10\x00".to_vec()),
        ("header.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{".to_vec()),
        ("cut.npy", good[..20].to_vec()),
    ];
    let mut messages = String::new();
    for (name, content) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let error = if name.ends_with(".npz") {
            read_npz(&path).map(|_| ()).unwrap_err()
        } else {
            read_npy(&path).map(|_| ()).unwrap_err()
        };
        messages += &format!("{error}\n").replace(folder.path().to_str().unwrap(), "DIR");
    }
    for missing in [folder.path().join("missing.npz"), folder.path().to_owned()] {
        messages += &format!("{}\n", read_npz(&missing).unwrap_err()).replace(folder.path().to_str().unwrap(), "DIR");
    }
    insta::assert_snapshot!(messages, @r#"
    DIR/empty.npz: the file is empty
    DIR/text.npz: not an .npz archive, or not a whole one: invalid Zip archive: Could not find EOCD
    DIR/single.npz: this is a single array (.npy), not an archive of them (.npz)
    DIR/truncated.npz: not an .npz archive, or not a whole one: invalid Zip archive: Could not find EOCD
    DIR/not_npy.npz: arg0: not a .npy array: too short
    DIR/suffix.npz: readme.txt: not an array: its name does not end in .npy
    DIR/control.npz: \u{1b}[31m: not a .npy array: too short
    DIR/short.npz: arg0: truncated: the array takes 16 bytes, 15 are there
    DIR/long.npz: arg0: the array takes 16 bytes, but more follow
    DIR/pickle.npz: arg0: elements of the type '|O' are no numbers that XLA knows
    DIR/huge.npz: arg0: an array larger than any memory
    DIR/large.npz: arg0: truncated: the array takes 4000000000000 bytes, 0 are there
    DIR/nested.npz: arg0: the header has "((((((((((((((((" where '{' belongs
    DIR/version.npy: version 9.0 of the .npy format is unknown
    DIR/header.npy: a header of 4294967295 bytes
    DIR/cut.npy: the header cannot be read: failed to fill whole buffer
    DIR/missing.npz: No such file or directory (os error 2)
    DIR: Is a directory (os error 21)
    "#);

    // Zero elements, however large the other dimensions.
    let path = folder.path().join("zero.npz");
    std::fs::write(&path, archive("arg0.npy", &npy(huge, b""))).unwrap();
    let array = read_npz(&path).unwrap().remove("arg0").unwrap();
    let dims = array.dims().to_vec();
    assert_eq!(array.into_host_array(DType::F64, &dims).unwrap().size(), 0);
}

#[test]
fn a_flipped_bit_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arrays.npz");
    let good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", &[0; 16]);
    let mut content = archive("arg0.npy", &good);
    let at = content.windows(good.len()).position(|window| window == good).unwrap() + good.len() - 1;
    content[at] ^= 1;
    std::fs::write(&path, content).unwrap();
    assert!(read_npz(&path).unwrap_err().to_string().contains("arg0"));
}

#[test]
fn random_damage_never_panics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arrays.npz");
    let original = std::fs::read(numpy("fortran.npz")).unwrap();
    let random = HostArray::filled(Fill::Random { seed: 3 }, 0, DType::F64, &[200]).unwrap();
    let draws: Vec<f64> =
        random.data().chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect();
    for draw in draws.chunks_exact(2) {
        let mut damaged = original.clone();
        let at = (draw[0] * damaged.len() as f64) as usize;
        damaged[at] ^= 1 + (draw[1] * 255.0) as u8;
        std::fs::write(&path, damaged).unwrap();
        if let Ok(arrays) = read_npz(&path) {
            for array in arrays.into_values() {
                let dims = array.dims().to_vec();
                let _ = array.into_host_array(DType::F32, &dims);
            }
        }
    }
}
