//! Writes the columns of a sweep to a Parquet file, with one row group and no compression.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use offramp_model::sweep::{Cells, Column};
use parquet::basic::{LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};

/// Definition level of a cell with a value in an optional column.
const DEFINED: i16 = 1;

/// Writes the columns to `path`. An existing file is replaced. A missing number is null.
///
/// # Errors
/// Returns an error with the path if the file cannot be written.
pub fn write(columns: &[Column], path: &Path) -> io::Result<()> {
    let named = |error: &dyn std::fmt::Display| io::Error::other(format!("cannot write {}: {error}", path.display()));
    let file = File::create(path).map_err(|error| named(&error))?;
    write_to(columns, file).map_err(|error| named(&error))
}

fn write_to(columns: &[Column], file: impl io::Write + Send) -> Result<(), ParquetError> {
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(file, schema(columns)?, properties)?;
    let mut group = writer.next_row_group()?;
    for column in columns {
        let Some(mut of_column) = group.next_column()? else { break };
        match &column.cells {
            Cells::Numbers(cells) => {
                let values: Vec<f64> = cells.iter().flatten().copied().collect();
                let levels: Vec<i16> = cells.iter().map(|cell| if cell.is_some() { DEFINED } else { 0 }).collect();
                of_column.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
            }
            Cells::Words(cells) => {
                let values: Vec<ByteArray> = cells.iter().map(|cell| ByteArray::from(cell.as_str())).collect();
                of_column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            }
        }
        of_column.close()?;
    }
    group.close()?;
    writer.close().map(|_| ())
}

fn schema(columns: &[Column]) -> Result<TypePtr, ParquetError> {
    let field = |column: &Column| {
        let field = match column.cells {
            Cells::Numbers(_) => Type::primitive_type_builder(&column.name, PhysicalType::DOUBLE)
                .with_repetition(Repetition::OPTIONAL)
                .build(),
            Cells::Words(_) => Type::primitive_type_builder(&column.name, PhysicalType::BYTE_ARRAY)
                .with_repetition(Repetition::REQUIRED)
                .with_logical_type(Some(LogicalType::String))
                .build(),
        };
        field.map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder("sweep").with_fields(fields).build().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    #[test]
    fn what_is_written_reads_back_the_same_with_names_words_and_missing_numbers() {
        let columns = [
            Column { name: "bus.clock_hz".to_owned(), cells: Cells::Numbers(vec![Some(8e6), None, Some(0.1)]) },
            Column {
                name: "error".to_owned(),
                cells: Cells::Words(["", "a \"b\", c", "\u{b5}s"].map(str::to_owned).to_vec()),
            },
        ];
        let path = std::env::temp_dir().join(format!("offramp-parquet-{}.parquet", std::process::id()));
        write(&columns, &path).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let names: Vec<_> = reader
            .metadata()
            .file_metadata()
            .schema()
            .get_fields()
            .iter()
            .map(|field| field.name().to_owned())
            .collect();
        assert_eq!(names, ["bus.clock_hz", "error"]);
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        let numbers: Vec<_> = rows.iter().map(|row| row.get_double(0).ok()).collect();
        assert_eq!(numbers, [Some(8e6), None, Some(0.1)]);
        let words: Vec<_> = rows.iter().map(|row| row.get_string(1).unwrap().clone()).collect();
        assert_eq!(words, ["", "a \"b\", c", "\u{b5}s"]);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = write(&[], Path::new("/nowhere/at.parquet")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at.parquet"), "{error}");
    }
}
