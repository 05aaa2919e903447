use super::*;
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(String);
pub fn load(bytes: &[u8], name: &str) -> Result<Program, LoadError> {
    let text = std::str::from_utf8(bytes).map_err(|e| LoadError(e.to_string()))?;
    if text.contains("HloModule") { return parse(text, name).map(Program::Hlo).map_err(|e| LoadError(e.to_string())); }
    Ok(Program::Mlir(bytes.to_vec()))
}
