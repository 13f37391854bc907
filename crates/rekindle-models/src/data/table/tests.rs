//! Tables that are read, split and refused.

use super::*;

const GOOD: &str = "sequence,class,left,right\na,0,0.5,-1.25\na,0,0.25,0.75\nb,2,-0.5,1\nb,2,1.5,0.125\n";

fn read(text: &str) -> Result<SequenceTable, TableError> {
    SequenceTable::from_reader(text.as_bytes(), TableShape::default())
}

fn refused(text: impl AsRef<[u8]>, shape: TableShape) -> String {
    SequenceTable::from_reader(text.as_ref(), shape).unwrap_err().to_string()
}

#[test]
fn a_table_is_read_as_it_stands() {
    let table = read(GOOD).unwrap();
    assert_eq!((table.len(), table.steps(), table.classes()), (2, 2, 3));
    assert_eq!(table.features(), ["left", "right"]);
    let batch = table.all(&Device::flex());
    assert_eq!(batch.sequences.dims(), [2, 2, 2]);
    let values: Vec<f32> = batch.sequences.into_data().iter().collect();
    assert_eq!(values, [0.5, -1.25, 0.25, 0.75, -0.5, 1.0, 1.5, 0.125]);
    assert_eq!(batch.classes.into_data().iter::<i64>().collect::<Vec<_>>(), [0, 2]);
    // Columns in any order, ends of lines of another system, blanks, quotes.
    let other =
        "left, class,right, sequence\r\n0.5,0,\"-1.25\",a\r\n0.25,0,0.75,a\r\n-0.5,2,1,b\r\n1.5,2,0.125,b";
    assert_eq!(read(other).unwrap(), table);
}

#[test]
fn a_file_is_read_or_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("steps.csv");
    std::fs::write(&path, GOOD).unwrap();
    assert_eq!(SequenceTable::read(&path, TableShape::default()).unwrap(), read(GOOD).unwrap());
    let missing = SequenceTable::read(directory.path().join("none.csv"), TableShape::default());
    assert!(missing.unwrap_err().to_string().contains("none.csv` cannot be opened"));
    // A directory can be opened and not read.
    assert!(matches!(
        SequenceTable::read(directory.path(), TableShape::default()),
        Err(TableError::Read(_) | TableError::Open { .. })
    ));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let cases = [
        ("", "the table has no rows"),
        ("sequence,class,x\n", "the table has no rows"),
        ("class,x\n0,1\n", "names no column `sequence`; it names `class`, `x`"),
        ("sequence,x\na,1\n", "names no column `class`"),
        ("sequence,class,x,x\na,0,1,1\n", "names the column `x` twice"),
        ("sequence,class\na,0\n", "the table has no feature"),
        ("sequence,class,x\na,0,1\na,0\n", "line 3 has 2 columns, expected 3"),
        ("sequence,class,x\na,0,one\n", "line 2, column `x`: `one` is not a finite number"),
        ("sequence,class,x\na,0,1\na,0,NaN\n", "line 3, column `x`: `NaN` is not a finite number"),
        ("sequence,class,x\na,0,-inf\n", "`-inf` is not a finite number"),
        ("sequence,class,x\na,0,1e60\n", "`1e60` is not a finite number"),
        ("sequence,class,x\na,0,\n", "`` is not a finite number"),
        ("sequence,class,x\na,0.5,1\n", "line 2: `0.5` is not a class, expected a whole number from 0"),
        ("sequence,class,x\na,-1,1\n", "`-1` is not a class"),
        ("sequence,class,x\na,70000,1\n", "`70000` is not a class, expected a whole number from 0 to 65535"),
        ("sequence,class,x\na,0,1\na,1,1\n", "line 3: sequence `a` has class 1 here and class 0 before"),
        ("sequence,class,x\na,0,1\nb,0,1\na,0,1\n", "line 4: sequence `a` goes on after another began"),
        (
            "sequence,class,x\na,0,1\nb,65,1\nc,1,1\n",
            "line 3: class 65 in a table of 3 different classes, expected them to be numbered from 0 on",
        ),
        (
            "sequence,class,x\na,0,1\na,0,1\nb,0,1\n",
            "sequence `b`, from line 4, has 1 steps, expected 2 as in the first",
        ),
    ];
    for (text, expected) in cases {
        let found = refused(text, TableShape::default());
        assert!(found.contains(expected), "{text:?}: {found}");
    }
    let found = refused(b"sequence,class,x\na,0,1\na,0,\xff\xfe\n", TableShape::default());
    assert!(found.contains("line 3 is not text"), "{found}");
    let found = refused(b"\xff\xfe,class,x\n", TableShape::default());
    assert!(found.contains("line 1 is not text"), "{found}");
}

#[test]
fn a_class_that_is_missing_is_no_gap() {
    assert_eq!(read("sequence,class,x\na,0,1\nb,9,1\n").unwrap().classes(), 10);
    let wide = TableShape { classes: Some(66), ..TableShape::default() };
    let table = SequenceTable::from_reader(&b"sequence,class,x\na,0,1\nb,65,1\n"[..], wide).unwrap();
    assert_eq!(table.classes(), 66, "who asks for classes has them");
}

#[test]
fn asked_for_steps_cut_longer_sequences_and_refuse_shorter_ones() {
    let text = "sequence,class,x\na,0,1\na,0,2\na,0,3\nb,1,4\nb,1,5\n";
    let shape = |steps, classes| TableShape { steps, classes };
    let table = SequenceTable::from_reader(text.as_bytes(), shape(Some(2), Some(5))).unwrap();
    assert_eq!((table.steps(), table.classes()), (2, 5));
    let values: Vec<f32> = table.all(&Device::flex()).sequences.into_data().iter().collect();
    assert_eq!(values, [1.0, 2.0, 4.0, 5.0]);
    assert!(
        refused(text, shape(Some(3), None)).contains("`b`, from line 5, has 2 steps, but 3 are asked for")
    );
    assert!(
        refused(text, shape(Some(2), Some(1)))
            .contains("`1` is not a class, expected a whole number from 0 to 0")
    );
    assert!(refused(text, shape(Some(0), None)).contains("0 steps are asked for"));
    assert!(refused(text, shape(None, Some(0))).contains("0 classes are asked for"));
}

fn many(order: impl Iterator<Item = usize>) -> SequenceTable {
    let rows = order.map(|index| format!("s{index},{},{index}.5\n", index % 3)).collect::<String>();
    read(&format!("sequence,class,x\n{rows}")).unwrap()
}

#[test]
fn a_split_goes_by_names_and_a_seed() {
    let table = many(0..20);
    let names = |table: &SequenceTable| -> Vec<String> {
        table.sequences.iter().map(|sequence| sequence.name.clone()).collect()
    };
    let (learned, held) = table.split(0.25, 1).unwrap();
    assert_eq!((learned.len(), held.len(), held.classes()), (15, 5, 3));
    let mut all = [names(&learned), names(&held)].concat();
    all.sort();
    let mut expected = names(&table);
    expected.sort();
    assert_eq!(all, expected, "each is in one of the two");
    assert_eq!(many((0..20).rev()).split(0.25, 1).unwrap(), (learned.clone(), held.clone()));
    assert_ne!(names(&table.split(0.25, 2).unwrap().1), names(&held));
    assert_eq!(table.split(1e-9, 1).unwrap().1.len(), 1);
    assert_eq!(table.split(0.999, 1).unwrap().0.len(), 1);
    for part in [0.0, 1.0, -1.0, f64::NAN] {
        assert!(matches!(table.split(part, 1), Err(TableError::Split { .. })), "{part}");
    }
    assert!(matches!(many(0..1).split(0.5, 1), Err(TableError::Split { sequences: 1, .. })));
}

#[test]
fn a_checksum_tells_tables_apart() {
    let sum = read(GOOD).unwrap().checksum();
    assert_eq!(read(GOOD).unwrap().checksum(), sum);
    for (from, to) in [("0.125", "0.126"), ("b,2", "c,2"), ("b,2", "b,1"), ("left", "west")] {
        assert_ne!(read(&GOOD.replace(from, to)).unwrap().checksum(), sum, "{from} to {to}");
    }
}

#[test]
fn the_same_sequences_are_drawn_from_the_same_numbers() {
    let table = many(0..20);
    let draw = |seed| {
        let batch = table.draw(6, &mut fastrand::Rng::with_seed(seed), &Device::flex());
        batch.sequences.into_data().iter::<f32>().collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    assert!(draw(1).iter().all(|value| value.fract() == 0.5));
}
