//! Library calls that JAX's programs make on CPUs: LAPACK's routines, as typed custom calls.
//!
//! JAX lowers `jnp.linalg` to custom calls whose targets its own package registers (`lapack_sgetrf_ffi` and so on); a
//! plugin by itself does not have them. Here they stand on [`faer`], with LAPACK's conventions where these are part of
//! the result: pivots, reflectors and their tau, the signs of R, the order of values, `info`. Matrices are column-major,
//! as the calls' layouts say. NaN or infinity in the input of an iteration gives NaN and a nonzero `info`.
//!
//! [`unknown_targets`] lists the custom calls of a module that neither we nor, as far as is known, a plugin has.

mod call;
mod eigen;
mod float_environment;
mod hessenberg;
mod known;

mod lu;
mod qr;
mod reflectors;
mod scalar;
mod schur;
mod svd;
mod triangular;

use num_complex::Complex;

use call::Call;
use float_environment::DefaultEnvironment;

use crate::pjrt::{self, CallFrame, Ffi, FfiError, Outcome, Plugin};

pub use known::{Availability, UnknownTarget, about, count_targets, unknown_targets};

/// The platform under which CPU plugins look for custom calls.
pub const PLATFORM: &str = "Host";

struct Routine {
    target: &'static str,
    register: fn(&Ffi, &str) -> pjrt::Result<()>,
}

macro_rules! routines {
    ($($target:literal => $routine:expr),* $(,)?) => {
        &[$(Routine {
            target: concat!("lapack_", $target, "_ffi"),
            register: |ffi, target| ffi.register(target, PLATFORM, |frame: &CallFrame<'_>| run(frame, $routine)),
        }),*]
    };
}

const ROUTINES: &[Routine] = routines![
    "sgetrf" => lu::getrf::<f32>,
    "dgetrf" => lu::getrf::<f64>,
    "cgetrf" => lu::getrf::<Complex<f32>>,
    "zgetrf" => lu::getrf::<Complex<f64>>,
    "sgtsv" => lu::gtsv::<f32>,
    "dgtsv" => lu::gtsv::<f64>,
    "cgtsv" => lu::gtsv::<Complex<f32>>,
    "zgtsv" => lu::gtsv::<Complex<f64>>,
    "strsm" => triangular::trsm::<f32>,
    "dtrsm" => triangular::trsm::<f64>,
    "ctrsm" => triangular::trsm::<Complex<f32>>,
    "ztrsm" => triangular::trsm::<Complex<f64>>,
    "spotrf" => triangular::potrf::<f32>,
    "dpotrf" => triangular::potrf::<f64>,
    "cpotrf" => triangular::potrf::<Complex<f32>>,
    "zpotrf" => triangular::potrf::<Complex<f64>>,
    "sgeqrf" => qr::geqrf::<f32>,
    "dgeqrf" => qr::geqrf::<f64>,
    "cgeqrf" => qr::geqrf::<Complex<f32>>,
    "zgeqrf" => qr::geqrf::<Complex<f64>>,
    "sgeqp3" => qr::geqp3::<f32>,
    "dgeqp3" => qr::geqp3::<f64>,
    "cgeqp3" => qr::geqp3::<Complex<f32>>,
    "zgeqp3" => qr::geqp3::<Complex<f64>>,
    "sorgqr" => qr::orgqr::<f32>,
    "dorgqr" => qr::orgqr::<f64>,
    "cungqr" => qr::orgqr::<Complex<f32>>,
    "zungqr" => qr::orgqr::<Complex<f64>>,
    "sormqr" => qr::ormqr::<f32>,
    "dormqr" => qr::ormqr::<f64>,
    "cunmqr" => qr::ormqr::<Complex<f32>>,
    "zunmqr" => qr::ormqr::<Complex<f64>>,
    "sgesdd" => svd::gesdd::<f32>,
    "dgesdd" => svd::gesdd::<f64>,
    "cgesdd" => svd::gesdd::<Complex<f32>>,
    "zgesdd" => svd::gesdd::<Complex<f64>>,
    "sgesvd" => svd::gesdd::<f32>,
    "dgesvd" => svd::gesdd::<f64>,
    "cgesvd" => svd::gesdd::<Complex<f32>>,
    "zgesvd" => svd::gesdd::<Complex<f64>>,
    "ssyevd" => eigen::syevd::<f32>,
    "dsyevd" => eigen::syevd::<f64>,
    "cheevd" => eigen::syevd::<Complex<f32>>,
    "zheevd" => eigen::syevd::<Complex<f64>>,
    "sgeev" => eigen::geev_real::<f32>,
    "dgeev" => eigen::geev_real::<f64>,
    "cgeev" => eigen::geev_complex::<f32>,
    "zgeev" => eigen::geev_complex::<f64>,
    "sgees" => schur::gees_real::<f32>,
    "dgees" => schur::gees_real::<f64>,
    "cgees" => schur::gees_complex::<f32>,
    "zgees" => schur::gees_complex::<f64>,
    "sgehrd" => hessenberg::gehrd::<f32>,
    "dgehrd" => hessenberg::gehrd::<f64>,
    "cgehrd" => hessenberg::gehrd::<Complex<f32>>,
    "zgehrd" => hessenberg::gehrd::<Complex<f64>>,
    "ssytrd" => hessenberg::sytrd::<f32>,
    "dsytrd" => hessenberg::sytrd::<f64>,
    "chetrd" => hessenberg::sytrd::<Complex<f32>>,
    "zhetrd" => hessenberg::sytrd::<Complex<f64>>,
];

/// The targets of the library calls that we have.
pub fn targets() -> impl Iterator<Item = &'static str> {
    ROUTINES.iter().map(|routine| routine.target)
}

/// Gives a plugin those of our library calls that are among `targets`.
pub fn register<'a>(plugin: &Plugin, targets: impl IntoIterator<Item = &'a str>) -> pjrt::Result<()> {
    for target in targets {
        let Some(routine) = ROUTINES.iter().find(|routine| routine.target == target) else { continue };
        let ffi = plugin.ffi().ok_or_else(|| pjrt::Error::Lacks {
            plugin: plugin.path().display().to_string(),
            what: format!("the FFI extension: it cannot be given the library call {target}"),
        })?;
        (routine.register)(&ffi, target)?;
    }
    Ok(())
}

fn run(frame: &CallFrame<'_>, routine: fn(&mut Call<'_, '_>) -> Result<(), FfiError>) -> Outcome {
    let _environment = DefaultEnvironment::enter();
    let result = Call::new(frame).and_then(|mut call| {
        routine(&mut call)?;
        call.clear_rest();
        Ok(())
    });
    Outcome::Done(result)
}
