//! Generates the protobuf types of `proto/` without needing protoc.

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::time::SystemTime;

use buffa_build::PointerRepr;
use protox::prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let files = ["hlo.proto", "compile_options.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    let descriptor_file = out_dir.join("descriptors.bin");
    std::fs::write(&descriptor_file, descriptors.encode_to_vec())?;
    // buffa-build has Cargo watch this file, which would be newer than every build that wrote it.
    File::options().append(true).open(&descriptor_file)?.set_modified(SystemTime::UNIX_EPOCH)?;
    buffa_build::Config::new()
        .descriptor_set(&descriptor_file)
        .files(&files)
        .generate_views(false)
        // Inline, an instruction would take kilobytes, most of them for what few have, and a sharding 600 bytes.
        .box_type(PointerRepr::Box)
        .box_type_custom_in("crate::proto::Shared<*>", &["xla.ShapeProto.layout"])
        .box_type_in(
            PointerRepr::Inline,
            &["xla.HloInstructionCommon.shape", "xla.ProgramShapeProto.result", "xla.LiteralProto.shape"],
        )
        .string_type_custom_in(
            "crate::proto::InlineString",
            &[".xla.HloInstructionCommon.name", ".xla.HloInstructionCommon.opcode"],
        )
        .repeated_type_custom_in(
            "crate::proto::InlineList<*>",
            &[".xla.HloInstructionCommon.operand_ids", ".xla.HloInstructionCommon.called_computation_ids"],
        )
        .extern_path(".xla.HloInstructionProto", "crate::proto::HloInstructionProto")
        .extern_path(".xla.SharedShape", "crate::proto::SharedShape")
        .include_file("proto.rs")
        .compile()?;
    Ok(())
}
