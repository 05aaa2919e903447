//! The committed programs.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use zip::ZipArchive;

/// One program of the corpus.
pub struct Entry {
    pub name: String,
    pub partitions: i64,
    /// Why the CPU plugin cannot run it; empty if it can.
    pub not_run: String,
    /// Its forms, by their extension.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// All programs, in the order in which they were made.
pub fn corpus() -> Vec<Entry> {
    let rows = include_str!("manifest.tsv").lines().skip(1);
    let mut entries: Vec<Entry> = rows
        .map(|row| {
            let [name, partitions, not_run] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("bad row {row}") };
            Entry {
                name: name.to_owned(),
                partitions: partitions.parse().unwrap(),
                not_run: not_run.to_owned(),
                files: BTreeMap::new(),
            }
        })
        .collect();
    let places: BTreeMap<String, usize> =
        entries.iter().enumerate().map(|(place, entry)| (entry.name.clone(), place)).collect();
    let mut outer = ZipArchive::new(Cursor::new(include_bytes!("corpus.zip"))).unwrap();
    let mut stored = Vec::new();
    outer.by_name("files.zip").unwrap().read_to_end(&mut stored).unwrap();
    let mut inner = ZipArchive::new(Cursor::new(stored)).unwrap();
    for index in 0..inner.len() {
        let mut file = inner.by_index(index).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        let name = file.name().unwrap().into_owned();
        let (name, form) = name.split_once('.').unwrap();
        entries[places[name]].files.insert(form.to_owned(), bytes);
    }
    entries
}
