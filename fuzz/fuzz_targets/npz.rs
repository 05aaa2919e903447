//! `.npz` archives and `.npy` files: no bytes may make the readers panic, hang or take much more memory than the arrays
//! that are there.
#![no_main]

use std::io::{self, Cursor};

use libfuzzer_sys::fuzz_target;
use spmd_run::host_array::npz::{NpyArray, read_npy_from, read_npz_from};
use spmd_run_fuzz::within_bounds;
use zip::ZipArchive;

fuzz_target!(|bytes: &[u8]| {
    let length = bytes.len() + unpacked_length(bytes);
    if let Ok(arrays) = within_bounds(length, || read_npz_from(Cursor::new(bytes), "fuzz")) {
        arrays.into_values().for_each(convert);
    }
    let stated = bytes.len() % 2 == 0;
    let array = within_bounds(bytes.len(), || read_npy_from(bytes, stated.then_some(bytes.len() as u64), "fuzz"));
    let _ = array.map(convert);
});

fn convert(array: NpyArray) {
    if let Some(dtype) = array.dtype() {
        let dims = array.dims().to_vec();
        let _ = array.into_host_array(dtype, &dims);
    }
}

/// How many bytes come out of an archive's entries, whatever it says of them.
fn unpacked_length(bytes: &[u8]) -> usize {
    let Ok(mut archive) = ZipArchive::new(Cursor::new(bytes)) else { return 0 };
    let mut length = 0;
    for index in 0..archive.len() {
        if let Ok(mut entry) = archive.by_index(index) {
            let mut sink = Counter(0);
            let _ = io::copy(&mut entry, &mut sink);
            length += sink.0;
        }
    }
    length
}

struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
