//! Encrypted jobs of real processes.

mod harness;

use std::path::Path;

use harness::by_hand::{self, TOKEN, free_address};
use harness::job::{plan, signal};
use harness::relay::{Relay, Weather};
use harness::{command, fails, finish, run, spmd_run, start};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use spmd_run::rendezvous::JobToken;

const STEP: [&str; 9] = [
    "hlo/dp_tp_mlp_step.hlo",
    "--input",
    "hlo/data/dp_tp_mlp_step.in.npz",
    "--expect",
    "hlo/data/dp_tp_mlp_step.out.npz",
    "--rtol",
    "1e-5",
    "--atol",
    "1e-5",
];

/// Who signs certificates.
struct Authority {
    params: CertificateParams,
    key: KeyPair,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority { params, key: KeyPair::generate().expect("a key") }
    }

    /// Writes what a process needs into a folder. The certificate's last year is `until`.
    fn certify(&self, folder: &Path, until: i32) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(until, 1, 1));
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
        let authority = self.params.self_signed(&self.key).expect("a certificate").pem();
        let files = [("tls.crt", certificate), ("tls.key", key.serialize_pem()), ("ca.crt", authority)];
        std::fs::create_dir_all(folder).expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("a file");
        }
    }
}

#[test]
fn an_encrypted_job_gives_the_same_results() {
    for (place, over) in
        [(["-n", "2"], "over tcp"), (["-n", "4"], "over shm"), (["--hosts", "a,localhost"], "over tcp")]
    {
        let transport = if over == "over tcp" { "tcp" } else { "auto" };
        let options = ["--tls", "--transport", transport];
        let outcome = plan(place.iter().chain(&options).chain(&STEP)).run().success(over);
        assert!(outcome.stdout.contains(over), "{}", outcome.stdout);
    }
}

#[test]
fn nobody_reads_what_is_said_to_the_coordinator() {
    for (tls, is_read) in [(&[][..], true), (&["--tls"], false)] {
        let address = free_address();
        let relay = Relay::new(address.parse().expect("an address"), Weather::default());
        let arguments = [&STEP[..], tls].concat();
        let first = start(by_hand::process(&address, 0, &arguments));
        let second = run(by_hand::process(&relay.address.to_string(), 1, &arguments));
        finish(first).success("process 0");
        second.success("process 1");
        assert!(relay.traffic() > 1000);
        for said in ["dp_tp_mlp_step", "all-reduce"] {
            assert_eq!(relay.has_seen(said.as_bytes()), is_read, "{said} {tls:?}");
        }
    }
}

#[test]
fn certificates_come_from_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = |name: &str| folder.path().join(name);
    let tls = |name: &str| format!("--tls={}", place(name).display());
    let (authority, other) = (Authority::new(), Authority::new());
    authority.certify(&place("first"), 2999);
    authority.certify(&place("second"), 2999);
    other.certify(&place("other"), 2999);
    authority.certify(&place("old"), 2001);

    let outcome = spmd_run(["-n", "2", "--transport", "tcp", &tls("first")].iter().copied().chain(STEP));
    outcome.success("on one host");
    let job = |second: &str| {
        let address = free_address();
        let first = start(by_hand::process(&address, 0, &["devices", &tls("first"), "--rendezvous-timeout", "8"]));
        let second = run(by_hand::process(&address, 1, &["devices", &tls(second)]));
        (finish(first), second)
    };
    let (first, second) = job("second");
    first.success("process 0");
    second.success("process 1");
    let (first, second) = job("other");
    fails(
        &second,
        3,
        &["cannot talk to the coordinator at 127.0.0.1:", "its certificate is of another authority", "same ca.crt"],
    );
    fails(
        &first,
        3,
        &["refused a process from 127.0.0.1:", "certificate to be of another authority", "missing 1 of 2: process 1"],
    );

    std::fs::copy(place("other").join("tls.key"), place("second").join("tls.key")).expect("a copy");
    std::fs::copy(place("other").join("ca.crt"), place("first").join("ca.crt")).expect("a copy");
    std::fs::write(place("other").join("ca.crt"), "nothing").expect("a file");
    let cases = [
        ("old", "old/tls.crt: "),
        ("second", "second/tls.key: it is not the key of "),
        ("first", "first/tls.crt: it is not of the authority in "),
        ("other", "other/ca.crt: it has no certificate in PEM form"),
        ("none", "none/ca.crt: "),
    ];
    for (name, said) in cases {
        let outcome = spmd_run(["devices", "-n", "2", &tls(name)]);
        fails(&outcome, 2, &[said]);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn one_process_with_tls_and_one_without_are_told_so() {
    for (first, second, reason, refusal) in [
        (
            &["--tls"][..],
            &[][..],
            "it runs with --tls, this process without",
            "it runs without --tls, this process with",
        ),
        (&[], &["--tls"], "it runs without --tls, this process with", "it runs with --tls, this process without"),
    ] {
        let address = free_address();
        let devices = ["devices", "--rendezvous-timeout", "8"];
        let first = start(by_hand::process(&address, 0, &[&devices, first].concat()));
        let second = run(by_hand::process(&address, 1, &[&devices, second].concat()));
        fails(&second, 3, &["cannot talk to the coordinator at 127.0.0.1:", reason, "give --tls to all processes"]);
        fails(&finish(first), 3, &["refused a process from 127.0.0.1:", refusal, "missing 1 of 2: process 1"]);
    }
}

#[test]
fn the_status_of_an_encrypted_job_is_for_those_with_its_token() {
    let address = free_address();
    let endless = ["hlo/scan_layers.hlo", "--repeat", "1000000", "--tls"];
    let processes = [0, 1].map(|index| start(by_hand::process(&address, index, &endless)));
    let status = |arguments: &[&str]| {
        let mut status = by_hand::status(&address);
        status.args(arguments);
        status
    };
    by_hand::wait_for_steps(|| status(&["--tls"]), 2);
    fails(&run(status(&[])), 3, &["it runs with --tls, this process without"]);
    let mut other = status(&["--tls"]);
    other.env(JobToken::VARIABLE, TOKEN.replace('0', "1"));
    fails(&run(other), 3, &["its certificate is of another authority"]);
    signal(processes[0].id(), "-TERM");
    for process in processes {
        assert_ne!(finish(process).code, Some(0));
    }
}

#[test]
fn certificates_take_a_secret_that_cannot_be_guessed() {
    let place = ["devices", "-n", "2", "--coordinator", "127.0.0.1:1", "--process-id", "1", "--tls"];
    let mut short = command(place);
    short.env(JobToken::VARIABLE, "0123456789abcdef");
    for outcome in [run(short), spmd_run(place)] {
        fails(&outcome, 2, &["a secret of 32 characters or more", "openssl rand -hex 32", "--tls=DIR"]);
    }
}
