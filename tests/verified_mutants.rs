//! What passes the verifier does not kill the compiler: mutants of valid modules, compiled by the real plugin in processes
//! of their own.

mod common;
mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use buffa::Message;
use spmd_run::hlo::{self, HloModule};
use spmd_run::lower::{self, replay};
use spmd_run::partition;
use spmd_run::pjrt::{CompileOptions, Program, ProgramFormat};
use spmd_run::proto::HloModuleProto;

/// Devices of the compiler's client.
const DEVICES: i64 = 8;

/// Replicas and partitions where a module does not say.
const COUNTS: [(i64, i64); 3] = [(1, 1), (2, 4), (1, 4)];

/// A compilation that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Set for the process that compiles.
const COMPILER: &str = "SPMD_TEST_COMPILER";

/// Marks the compiler's answers among the test framework's own output.
const ANSWER: &str = "@@ ";

/// Compiles what comes on standard input, and says how each went on standard output. A test only so that the parent can
/// start it from its own executable.
#[test]
#[ignore = "the compiling half of the others"]
fn compiler() {
    if std::env::var_os(COMPILER).is_none() {
        return;
    }
    let client = common::client(&common::plugin(), DEVICES);
    let mut stdin = std::io::stdin().lock();
    let mut header = [[0; 8]; 4];
    while stdin.read_exact(header.as_flattened_mut()).is_ok() {
        let [num_replicas, num_partitions, is_tupled, length] = header.map(i64::from_le_bytes);
        let mut code = vec![0; length as usize];
        stdin.read_exact(&mut code).unwrap();
        let options = CompileOptions {
            num_replicas,
            num_partitions,
            use_spmd_partitioning: num_partitions > 1,
            parameter_is_tupled_arguments: is_tupled != 0,
            ..CompileOptions::default()
        };
        let program = Program { code: &code, format: ProgramFormat::Hlo };
        let answer = match client.compile(&program, &options.encode()) {
            Ok(_) => "compiled".to_owned(),
            Err(error) => error.to_string().replace('\n', " "),
        };
        println!("\n{ANSWER}{answer}");
    }
}

/// How the plugin took a module.
#[derive(Debug, PartialEq)]
enum Verdict {
    Compiled,
    Refused(String),
    /// The last words of a process that died or hung.
    Died(String),
}

struct Compiler {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
    words: tempfile::NamedTempFile,
}

impl Compiler {
    fn start() -> Compiler {
        let words = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["compiler", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(COMPILER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(words.reopen().unwrap())
            .spawn()
            .unwrap();
        let (sender, answers) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(ANSWER) {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        let stdin = child.stdin.take().unwrap();
        Compiler { child, stdin, answers, words }
    }

    fn compile(&mut self, module: &HloModuleProto, (replicas, partitions): (i64, i64)) -> Verdict {
        let code = module.encode_to_vec();
        let parameters = &module.host_program_shape.parameters;
        let is_tupled = matches!(&parameters[..], [only] if hlo::shape::is_tuple(only));
        let header = [replicas, partitions, is_tupled.into(), code.len() as i64].map(i64::to_le_bytes);
        let sent = self.stdin.write_all(header.as_flattened()).and_then(|()| self.stdin.write_all(&code));
        let sent = sent.and_then(|()| self.stdin.flush());
        let answer = match sent {
            Ok(()) => self.answers.recv_timeout(LIMIT),
            Err(_) => Err(mpsc::RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(answer) if answer == "compiled" => Verdict::Compiled,
            Ok(answer) => Verdict::Refused(answer),
            Err(error) => {
                let end = match error {
                    mpsc::RecvTimeoutError::Timeout => "it hangs".to_owned(),
                    mpsc::RecvTimeoutError::Disconnected => self.child.wait().unwrap().to_string(),
                };
                let words = std::fs::read_to_string(self.words.path()).unwrap_or_default();
                let last = words.lines().rev().find(|line| line.contains("Check failed") || line.starts_with('F'));
                *self = Compiler::start();
                Verdict::Died(format!("{end}: {}", last.unwrap_or_default()))
            }
        }
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// SplitMix64: the same mutants on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
}

/// What the words of a module's text are, as far as mutating goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Number,
    ElementType,
    Opcode,
    Name,
    Other,
}

const ELEMENT_TYPES: [&str; 18] = [
    "pred", "s4", "s8", "s16", "s32", "s64", "u4", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64", "c64",
    "c128", "f8e4m3fn",
];

/// The text in words and what stands between them.
fn words(text: &str) -> Vec<(Kind, String)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '%');
    let mut words: Vec<(Kind, String)> = Vec::new();
    let mut in_word = false;
    for c in text.chars() {
        if is_word(c) && in_word {
            words.last_mut().unwrap().1.push(c);
        } else {
            words.push((Kind::Other, c.to_string()));
        }
        in_word = is_word(c);
    }
    for index in 0..words.len() {
        let next = words.get(index + 1).map_or("", |(_, word)| word);
        let before = index.checked_sub(1).map_or("", |index| &words[index].1);
        let word = words[index].1.as_str();
        words[index].0 = if word.parse::<i64>().is_ok() {
            Kind::Number
        } else if next == "[" && ELEMENT_TYPES.contains(&word) {
            Kind::ElementType
        } else if next == "(" && before == " " && word.starts_with(|c: char| c.is_ascii_lowercase()) {
            Kind::Opcode
        } else if word.starts_with('%') {
            Kind::Name
        } else {
            Kind::Other
        };
    }
    words
}

/// Changes one thing.
fn mutate(words: &mut [(Kind, String)], random: &mut Random) {
    let kinds = [
        Kind::Number,
        Kind::Number,
        Kind::Number,
        Kind::ElementType,
        Kind::Opcode,
        Kind::Name,
        Kind::Name,
        Kind::Other,
    ];
    let kind = *random.pick(&kinds).unwrap();
    let places: Vec<usize> = (0..words.len()).filter(|&index| words[index].0 == kind).collect();
    let Some(&place) = random.pick(&places) else { return };
    let old = words[place].1.clone();
    let other = places.get(random.below(places.len())).map(|&index| words[index].1.clone()).unwrap_or_default();
    let new = match kind {
        Kind::Number => {
            let value: i64 = old.parse().unwrap();
            let near = [
                0,
                1,
                2,
                3,
                -1,
                value.wrapping_add(1),
                value.wrapping_sub(1),
                value.wrapping_mul(2),
                i64::MAX,
                1 << 31,
                64,
            ];
            if random.below(2) == 0 { other } else { random.pick(&near).unwrap().to_string() }
        }
        Kind::ElementType => (*random.pick(&ELEMENT_TYPES).unwrap()).to_owned(),
        Kind::Opcode | Kind::Name => other,
        Kind::Other => match random.below(3) {
            0 => String::new(),
            1 => other,
            _ => old.repeat(2),
        },
    };
    // Everywhere, so that what belongs together still fits.
    if matches!(kind, Kind::Number | Kind::ElementType) && random.below(3) == 0 {
        for (_, word) in words.iter_mut().filter(|(of, word)| *of == kind && *word == old) {
            word.clone_from(&new);
        }
    } else {
        words[place].1 = new;
    }
}

/// Changes of the binary form that the text cannot say.
fn mutate_proto(module: &mut HloModuleProto, random: &mut Random) {
    let computations = module.computations.len();
    let Some(computation) = module.computations.get_mut(random.below(computations)) else { return };
    let count = computation.instructions.len();
    let ids: Vec<i64> = computation.instructions.iter().map(|instruction| instruction.id).collect();
    let at = random.below(count);
    let id = |random: &mut Random| match random.below(4) {
        0 => [0, -1, i64::MAX, i64::MIN][random.below(4)],
        _ => ids[random.below(ids.len())],
    };
    match random.below(14) {
        0 => computation.root_id = id(random),
        1 => computation.instructions[at].id = id(random),
        2 => computation.instructions.swap(at, random.below(count)),
        3 => {
            computation.instructions.remove(at);
        }
        4 => {
            let new = id(random);
            computation.instructions[at].operand_ids.push(new);
        }
        5 => {
            computation.instructions[at].operand_ids.pop();
        }
        6 => {
            let new = id(random);
            if let Some(operand) = computation.instructions[at].operand_ids.first_mut() {
                *operand = new;
            }
        }
        7 => computation.instructions[at].name = computation.instructions[random.below(count)].name.clone(),
        8 => {
            let new = random.below(computations + 1) as i64;
            computation.instructions[at].called_computation_ids.push(new);
        }
        9 => {
            let shape = computation.instructions[random.below(count)].shape.clone();
            computation.instructions[at].shape = shape;
        }
        10 => {
            let shape = computation.instructions[at].shape.get_or_insert_default();
            match random.below(4) {
                0 => shape.is_dynamic_dimension.push(true),
                1 => shape.is_dynamic_dimension.iter_mut().for_each(|dynamic| *dynamic = true),
                2 => shape.dimensions.push(1),
                _ => shape.layout = None.into(),
            }
        }
        11 => computation.instructions[at].control_predecessor_ids.push(id(random)),
        12 => computation.name = String::new(),
        _ => {
            let new = id(random);
            module.entry_computation_id = if random.below(2) == 0 { random.below(computations) as i64 } else { new };
        }
    }
}

/// A changed module, and the replicas and partitions to run it by.
fn mutant(text: &str, random: &mut Random) -> Option<(HloModule, (i64, i64))> {
    let mut words = words(text);
    let in_text = random.below(4);
    for _ in 0..in_text {
        mutate(&mut words, random);
    }
    let text: String = words.into_iter().map(|(_, word)| word).collect();
    let mut module = hlo::parse(&text, "mutant").ok()?;
    if in_text == 0 || random.below(8) == 0 {
        mutate_proto(&mut module.proto, random);
    }
    let config = &module.config;
    let default = *random.pick(&COUNTS)?;
    let counts = (config.replica_count.unwrap_or(default.0), config.num_partitions.unwrap_or(default.1));
    (counts.0 > 0 && counts.1 > 0 && counts.0.checked_mul(counts.1)? <= DEVICES).then_some((module, counts))
}

/// Brings a verified module into the form in which the runtime hands it to the compiler. False if it is refused after
/// all, or is not partitioned by the compiler.
fn prepare(module: &mut HloModule, (replicas, partitions): (i64, i64)) -> bool {
    if replay::compiled_because(module).is_some()
        && (partitions > 1 || replay::undo(module).is_err() || hlo::verify(module, replicas, partitions).is_err())
    {
        return false;
    }
    lower::flatten_entry(module);
    partition::shard_tuples(module, partitions);
    hlo::remove_dead_code(&mut module.proto);
    let program_shape = module.proto.host_program_shape.get_or_insert_default();
    program_shape.parameters.iter_mut().for_each(|shape| hlo::shape::set_row_major(shape));
    hlo::shape::set_row_major(program_shape.result.get_or_insert_default());
    hlo::groups::expand_replica_groups(&mut module.proto).is_ok()
}

/// The modules of a folder, as printed by us, so that their words are where we expect them.
fn modules(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "hlo"));
    files.sort();
    let load = |path: PathBuf| {
        let bytes = std::fs::read(&path).ok()?;
        let name = path.display().to_string();
        let hlo::Program::Hlo(module) = hlo::load(&bytes, &name).ok()? else { return None };
        Some((path, hlo::print(&module)))
    };
    files.into_iter().filter_map(load).collect()
}

#[test]
fn modules_of_every_opcode_pass() {
    for (path, text) in modules(&harness::root().join("tests/data/opcodes")) {
        let module = hlo::parse(&text, &path.display().to_string()).unwrap();
        let config = &module.config;
        let counts = (config.replica_count.unwrap_or(1), config.num_partitions.unwrap_or(1));
        hlo::verify(&module, counts.0, counts.1).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// A small part of what the long search below goes through.
#[test]
fn verified_mutants_do_not_kill_the_compiler() {
    let modules = modules(&harness::root().join("tests/data/opcodes"));
    let mut compiler = Compiler::start();
    let mut random = Random(1);
    let mut compiled = 0;
    for index in 0.. {
        if compiled == 300 {
            break;
        }
        let (path, text) = &modules[index % modules.len()];
        let Some((mut module, counts)) = mutant(text, &mut random) else { continue };
        if hlo::verify(&module, counts.0, counts.1).is_ok() && prepare(&mut module, counts) {
            compiled += 1;
            let verdict = compiler.compile(&module.proto, counts);
            assert!(!matches!(verdict, Verdict::Died(_)), "{}: {verdict:?}\n{}", path.display(), hlo::print(&module));
        }
    }
}

/// The long search. `SPMD_MUTANTS` is a folder of modules, `SPMD_MUTANTS_OUT` one for what is found, and
/// `SPMD_MUTANTS_SEED` and `SPMD_MUTANTS_COUNT` are numbers. With `SPMD_MUTANTS_REFUSED`, mutants that the verifier refuses
/// are compiled too, and those that XLA takes are reported: either it is too strict there, or XLA is lax.
#[test]
#[ignore = "a search without end, for developers"]
fn search() {
    let variable = |name: &str| std::env::var(name).ok();
    let number = |name: &str, default: u64| variable(name).map_or(default, |value| value.parse().unwrap());
    let folder = variable("SPMD_MUTANTS").map_or(harness::root().join("tests/data/opcodes"), PathBuf::from);
    let out = PathBuf::from(variable("SPMD_MUTANTS_OUT").expect("SPMD_MUTANTS_OUT"));
    let refused = variable("SPMD_MUTANTS_REFUSED").is_some();
    let modules = modules(&folder);
    let seed = number("SPMD_MUTANTS_SEED", 1);
    let mut random = Random(seed);
    let mut compiler = Compiler::start();
    let (mut passed, mut taken, mut finds) = (0, 0, 0);
    let mut seen = std::collections::HashMap::<String, usize>::new();
    for index in 0..number("SPMD_MUTANTS_COUNT", u64::MAX) {
        let (path, text) = &modules[random.below(modules.len())];
        let Some((mut module, counts)) = mutant(text, &mut random) else { continue };
        let verified = hlo::verify(&module, counts.0, counts.1);
        if verified.is_err() != refused {
            continue;
        }
        let printed = hlo::print(&module);
        let original = module.proto.encode_to_vec();
        if !refused && !prepare(&mut module, counts) {
            continue;
        }
        passed += 1;
        let verdict = compiler.compile(&module.proto, counts);
        taken += usize::from(verdict == Verdict::Compiled);
        let report = match (&verified, &verdict) {
            (Ok(()), Verdict::Died(words)) => Some(words.clone()),
            (Err(error), Verdict::Compiled) => Some(error.message.clone()),
            _ => None,
        };
        if let Some(report) = report {
            let digits: String = report.chars().filter(|c| !c.is_ascii_digit()).take(140).collect();
            let count = seen.entry(digits).or_default();
            *count += 1;
            finds += 1;
            if *count <= 3 {
                let name = out.join(format!("{seed}-{index}"));
                std::fs::write(
                    name.with_extension("hlo"),
                    format!("// {} {counts:?}: {report}\n{printed}", path.display()),
                )
                .unwrap();
                std::fs::write(name.with_extension("pb"), original).unwrap();
                println!("{}: {}: {report}", name.display(), path.display());
            }
        }
        if passed % 1000 == 0 {
            println!("{index} mutants, {passed} sent, {taken} compiled, {finds} finds");
        }
    }
    println!("{passed} sent, {taken} compiled, {finds} finds");
}
