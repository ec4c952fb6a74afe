//! A writer of the parts of Python's pickle format that are needed here.

pub enum Py<'a> {
    Int(u64),
    Bool(bool),
    Text(&'a str),
    List(Vec<Py<'a>>),
    Dict(Vec<(&'a str, Py<'a>)>),
}

pub fn dump(value: &Py<'_>) -> Vec<u8> {
    let mut bytes = b"\x80\x04".to_vec();
    write(value, &mut bytes);
    bytes.push(b'.');
    bytes
}

fn text(text: &str, bytes: &mut Vec<u8>) {
    bytes.push(b'X');
    bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(0x94);
}

fn write(value: &Py<'_>, bytes: &mut Vec<u8>) {
    match value {
        Py::Int(number) => {
            bytes.extend([0x8a, 9]);
            bytes.extend(number.to_le_bytes());
            bytes.push(0);
        }
        Py::Bool(value) => bytes.push(if *value { 0x88 } else { 0x89 }),
        Py::Text(value) => text(value, bytes),
        Py::List(items) => {
            bytes.extend(b"]\x94(");
            items.iter().for_each(|item| write(item, bytes));
            bytes.push(b'e');
        }
        Py::Dict(entries) => {
            bytes.extend(b"}\x94(");
            for (key, value) in entries {
                text(key, bytes);
                write(value, bytes);
            }
            bytes.push(b'u');
        }
    }
}
