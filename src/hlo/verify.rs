use super::*;
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct VerifyError(String);
pub fn verify(_: &HloModule, _: i64, _: i64) -> Result<(), VerifyError> {
    Ok(())
}
