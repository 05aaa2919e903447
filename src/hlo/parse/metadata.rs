//! What instructions carry besides their meaning: metadata, frontend attributes, statistics, original values.

use super::cursor::fail;
use super::error::{Result, hint};
use super::{Map, Parser};
use crate::proto::frontend_attributes::MapEntry;
use crate::proto::{
    FrontendAttributes, OpMetadata, OriginalArrayProto, OriginalValueElementProto, OriginalValueProto, Payload,
    Statistic, StatisticsViz, payload,
};

impl<'a> Parser<'a> {
    /// `{op_name="jit(f)/add" source_file="f.py" source_line=3}`; the commas are optional.
    pub(super) fn metadata(&mut self) -> Result<OpMetadata> {
        let mut metadata = OpMetadata::default();
        self.expect(b'{', "before the metadata")?;
        while !self.eat(b'}') {
            let start = self.pos();
            let field = self.word("a metadata field or '}'")?;
            self.expect(b'=', "after the metadata field")?;
            match field {
                "op_type" => metadata.op_type = self.string()?,
                "op_name" => metadata.op_name = self.string()?,
                "source_file" => metadata.source_file = self.string()?,
                "source_line" => metadata.source_line = self.integer_i32()?,
                "source_end_line" => metadata.source_end_line = self.integer_i32()?,
                "source_column" => metadata.source_column = self.integer_i32()?,
                "source_end_column" => metadata.source_end_column = self.integer_i32()?,
                "deduplicated_name" => metadata.deduplicated_name = self.string()?,
                "scheduling_name" => metadata.scheduling_name = self.string()?,
                "stack_frame_id" => metadata.stack_frame_id = self.integer_i32()?,
                "metadata_payload" => {
                    let value = self.bytes()?.into_owned();
                    let payload_source = Some(payload::PayloadSource::Value(value));
                    metadata.metadata_payload = Payload { payload_source, ..Default::default() }.into();
                }
                "profile_type" => {
                    metadata.profile_type = self.list(b'{', b'}', "profile types", |parser| parser.integer_i32())?;
                }
                // XLA no longer has these, older texts do.
                "logical_creation_pass_id" | "size_of_generated_code_in_bytes" => drop(self.integer()?),
                other => {
                    const FIELDS: [&str; 9] = [
                        "op_type",
                        "op_name",
                        "source_file",
                        "source_line",
                        "source_end_line",
                        "source_column",
                        "deduplicated_name",
                        "scheduling_name",
                        "stack_frame_id",
                    ];
                    return Err(fail(start, format!("unknown metadata field '{other}'{}", hint(other, FIELDS))));
                }
            }
            self.eat(b',');
        }
        Ok(metadata)
    }

    /// `{key="value",other={"json": 1}}`
    pub(super) fn frontend_attributes(&mut self) -> Result<FrontendAttributes> {
        let entries = self.list(b'{', b'}', "frontend attributes", |parser| {
            let key = parser.word("an attribute name")?.to_owned();
            parser.expect(b'=', "after the attribute name")?;
            let value = if parser.at(b'{') { parser.braces()?.to_owned() } else { parser.string()? };
            Ok(MapEntry { key, value, ..Default::default() })
        })?;
        // Of entries with the same key the last one counts.
        let last: Map<String, usize> = entries.iter().map(|entry| entry.key.clone()).zip(0..).collect();
        let map = entries.into_iter().zip(0..).filter(|(entry, index)| last[&entry.key] == *index);
        Ok(FrontendAttributes { map: map.map(|(entry, _)| entry).collect(), ..Default::default() })
    }

    /// `{visualizing_index=1,stat-1=33,stat-2=44}`
    pub(super) fn statistics(&mut self) -> Result<StatisticsViz> {
        let mut statistics = StatisticsViz::default();
        let mut first = true;
        statistics.statistics = self
            .list(b'{', b'}', "statistics", |parser| {
                let stat_name = parser.word("the name of a statistic")?.to_owned();
                parser.expect(b'=', "after the name of the statistic")?;
                if std::mem::take(&mut first) {
                    statistics.stat_index_to_visualize = parser.integer()?;
                    return Ok(None);
                }
                Ok(Some(Statistic { stat_name, stat_val: parser.number()?, ..Default::default() }))
            })?
            .into_iter()
            .flatten()
            .collect();
        Ok(statistics)
    }

    /// `{{"add.1"}}`, `{({"a"}, {"b" {0}})}` or `{[synthetic_call]}`: which values of an earlier module these were.
    pub(super) fn original_value(&mut self) -> Result<OriginalValueProto> {
        let mut value = OriginalValueProto::default();
        self.expect(b'{', "before the original value")?;
        if self.eat(b'[') {
            if !self.eat_word("synthetic_call") {
                return Err(self.expected("synthetic_call"));
            }
            self.expect(b']', "after 'synthetic_call'")?;
            value.is_synthetic_call = true;
        } else {
            self.original_arrays(&mut Vec::new(), &mut value)?;
        }
        self.expect(b'}', "after the original value")?;
        Ok(value)
    }

    fn original_arrays(&mut self, index: &mut Vec<i64>, value: &mut OriginalValueProto) -> Result<()> {
        if self.at(b'{') {
            let original_array = self.original_array()?.into();
            let element =
                OriginalValueElementProto { shape_index: index.clone(), original_array, ..Default::default() };
            value.elements.push(element);
        } else if self.at(b'(') {
            index.push(0);
            self.nested(|parser| {
                parser.list(b'(', b')', "tuple of original values", |parser| {
                    parser.original_arrays(index, value)?;
                    if let Some(last) = index.last_mut() {
                        *last += 1;
                    }
                    Ok(())
                })
            })?;
            index.pop();
        }
        Ok(())
    }

    /// `{"name" {1,0}}`, or `{}` where the value is lost.
    fn original_array(&mut self) -> Result<Option<OriginalArrayProto>> {
        self.expect(b'{', "before the original array")?;
        let mut array = None;
        if !self.at(b'}') {
            let instruction_name = self.string()?;
            let shape_index = if self.at(b'{') { self.integers()? } else { Vec::new() };
            array = Some(OriginalArrayProto { instruction_name, shape_index, ..Default::default() });
        }
        self.expect(b'}', "after the original array")?;
        Ok(array)
    }
}
