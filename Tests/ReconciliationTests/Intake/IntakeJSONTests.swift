import Encoding
import TestRandom
import Testing

/// Goal: no JSON of a client is misread or rounded, and none makes a SQL statement fail. Method: tables of texts with
/// the expected results.
@Suite struct IntakeJSONTests {
    @Test(
        "What is read is written as it was, numbers included",
        arguments: [
            #"{"a":0.10,"b":18446744073709551616,"c":-0,"d":1E400,"e":[],"f":{},"g":null,"h":true,"i":false}"#,
            #"["é","\"","\\","\u0001","😀","/"]"#,
            "0", "-1.5e-3", #""""#,
        ])
    func roundTrip(_ text: String) throws {
        #expect(try JSONValue(parsing: Array(text.utf8)).text == text)
    }

    @Test(
        "Escapes become what they mean",
        arguments: [
            (#""\u00e9""#, "é"), (#""\ud83d\ude00""#, "😀"), (#""\n\t\r\b\f\/""#, "\n\t\r\u{8}\u{c}/"),
        ])
    func escapes(_ text: String, _ meaning: String) throws {
        #expect(try JSONValue(parsing: Array(text.utf8)) == .string(meaning))
    }

    @Test("A string is read the same wherever in it stands what ends it, escapes or does not belong")
    func places() throws {
        for count in 0...20 {
            for place in 0...count {
                let (before, after) = (
                    String(repeating: "~", count: place), String(repeating: "\u{7F}", count: count - place)
                )
                func parse(_ middle: String) throws -> JSONValue {
                    try JSONValue(parsing: Array("\"\(before)\(middle)\(after)\"".utf8))
                }
                for middle in ["", " ", "é", "漢", "😀", "!", "#", "[", "]"] {
                    #expect(try parse(middle) == .string(before + middle + after))
                }
                #expect(try parse(#"\""#) == .string(before + "\"" + after))
                #expect(try parse(#"\\"#) == .string(before + #"\"# + after))
                #expect(throws: JSONError(kind: .syntax, field: nil)) { try parse("\"") }
                for control in UInt8(1)..<0x20 {
                    #expect(throws: JSONError(kind: .syntax, field: nil)) {
                        try parse(String(UnicodeScalar(control)))
                    }
                }
                #expect(throws: JSONError(kind: .zeroCharacter, field: nil)) { try parse("\0") }
            }
        }
    }

    @Test(
        "No JSON by RFC 8259",
        arguments: [
            "", " ", "{", "}", "{}{}", "{} x", "nul", "tru", "NaN", "Infinity", "'a'", "{a:1}", #"{"a"}"#, #"{"a":}"#,
            #"{"a":1,}"#, "[1,]", "[1 2]", "01", "+1", "1.", ".5", "1e", "1e+", "-", "0x10", #""a"#, #""\x""#,
            #""\u12"#,
            #""\u123g""#, "\"\t\"", #""\ud800""#, #""\ud800\u0041""#, #""\udc00""#, "\u{FEFF}\u{FEFF}{}", "{\u{FEFF}}",
            "\u{FEFF}", "// c\n{}",
        ])
    func syntax(_ text: String) {
        let error = #expect(throws: JSONError.self) { try JSONValue(parsing: Array(text.utf8)) }
        #expect(error?.kind == .syntax)
    }

    @Test(
        "F16: a byte order mark before the text is passed over", arguments: ["{}", " []", "1", "{\"a\":\"\u{FEFF}\"}"])
    func byteOrderMark(_ text: String) throws {
        let marked = Array("\u{FEFF}\(text)".utf8)
        #expect(try JSONValue(parsing: marked) == JSONValue(parsing: Array(text.utf8)))
        #expect(try JSON(parsing: marked) == JSON(parsing: Array(text.utf8)))
    }

    @Test(
        "Bytes that are no UTF-8",
        arguments: [
            [0x22, 0xFF, 0x22], [0x22, 0xC0, 0x80, 0x22], [0x22, 0xED, 0xA0, 0x80, 0x22], [0xFE, 0xFF, 0x00, 0x7B],
        ] as [[UInt8]])
    func encoding(_ bytes: [UInt8]) {
        #expect(throws: JSONError.self) { try JSONValue(parsing: bytes) }
    }

    @Test(
        "U+0000 is found and named, nested and in keys",
        arguments: [
            #"{"x":"a\u0000"}"#, #"{"x":{"y":["\u0000"]}}"#, "{\"x\":\"\u{0}\"}", #"{"x":{"\u0000":1}}"#,
        ])
    func zero(_ text: String) {
        #expect(throws: JSONError(kind: .zeroCharacter, field: "x")) { try JSONValue(parsing: Array(text.utf8)) }
    }

    @Test(
        "S3-61: of a list of documents, what cannot be stored is the one's that holds it, with its field",
        arguments: [
            (#"{"a":"\u0000"}"#, JSONError(kind: .zeroCharacter, field: "a")),
            (#"{"b":1,"a":["]}",{"\u0000":"\"]"}]}"#, JSONError(kind: .zeroCharacter, field: "a")),
            (#"{"a":{"receipts":[1e999]}}"#, JSONError(kind: .number, field: "a")),
            (#""\u0000,]""#, JSONError(kind: .zeroCharacter, field: nil)),
            ("1e999", JSONError(kind: .number, field: nil)),
            (
                #"{"ok":"]","a":\#(String(repeating: "[", count: 99))\#(String(repeating: "]", count: 99))}"#,
                JSONError(kind: .depth, field: "a")
            ),
        ])
    func batch(_ text: String, _ error: JSONError) throws {
        let whole = #"{"x":[2],"receipts":[{"a":1}, \#(text) ,3],"y":"\u00e9"}"#
        let batch = try JSONValue.Batch(parsing: Array(whole.utf8), entriesOf: "receipts")
        #expect(batch.envelope["x"]?.text == "[2]" && batch.envelope["y"] == .string("é"))
        #expect(
            batch.entries == [.success(.object([.init("a", .integer(1))])), .failure(error), .success(.integer(3))])
        // An entry may be as deep as a document of its own; of equal keys the last one counts.
        let deep = String(repeating: "[", count: JSONValue.depthMax) + String(repeating: "]", count: JSONValue.depthMax)
        let twice = try JSONValue.Batch(
            parsing: Array(#"{"receipts":[\#(text)],"receipts":[\#(deep)]}"#.utf8), entriesOf: "receipts")
        #expect(twice.entries?.map { (try? $0.get())?.text } == [deep])
    }

    @Test(
        "What is no JSON, or cannot be stored beside the list, is wrong with the whole; no list is none",
        arguments: [
            #"{"receipts":[{"a":"\u0000"},{]}"#, #"{"receipts":["\u0000"}"#, #"{"receipts":["\u0000""#,
            #"{"receipts":[],"x":"\u0000"}"#, #"{"receipts":[],"x":["\u0000"]}"#, #"["\u0000"]"#,
        ])
    func noBatch(_ text: String) throws {
        #expect(throws: JSONError.self) {
            try JSONValue.Batch(parsing: Array(text.utf8), entriesOf: "receipts")
        }
        for none in ["{}", "[1]", #"{"receipts":{"a":[1]}}"#, #"{"receipts":[1],"receipts":2}"#] {
            #expect(try JSONValue.Batch(parsing: Array(none.utf8), entriesOf: "receipts").entries == nil)
        }
    }

    @Test func depthIsBounded() throws {
        let deep = { (count: Int) in
            "{\"x\":" + String(repeating: "[", count: count) + String(repeating: "]", count: count) + "}"
        }
        _ = try JSONValue(parsing: Array(deep(31).utf8))
        #expect(throws: JSONError(kind: .depth, field: "x")) { try JSONValue(parsing: Array(deep(32).utf8)) }
        // The parser reads only the first 33 bytes of such a document.
        #expect(throws: JSONError.self) { try JSONValue(parsing: Array(String(repeating: "[", count: 1 << 20).utf8)) }
    }

    @Test(
        "Numbers that PostgreSQL's numeric cannot hold",
        arguments: [
            "1e401", "1e-401", "1E9999999999999999999", String(repeating: "9", count: 65),
        ])
    func numbers(_ text: String) {
        #expect(throws: JSONError(kind: .number, field: "x")) {
            try JSONValue(parsing: Array("{\"x\":\(text)}".utf8))
        }
    }

    @Test func theLastOfEqualKeysCountsAndSpellingsStayApart() throws {
        let value = try JSONValue(parsing: Array("{\"b\":1,\"a\":2,\"b\":3,\"\u{e9}\":4,\"e\u{301}\":5}".utf8))
        #expect(value["b"] == .number("3"))
        #expect(value["\u{e9}"] == .number("4"))
        #expect(value["e\u{301}"] == .number("5"))
        #expect(value.canonical.text == "{\"a\":2,\"b\":3,\"e\u{301}\":5,\"\u{e9}\":4}")
    }

    /// Goal: any valid JSON of a client is stored as it was; other bytes are refused, and nothing crashes.
    @Test func randomValuesSurviveAndDamagedBytesDoNoHarm() throws {
        var random = SeededRandom(announcing: "JSON of clients")
        let seed = random.seed
        for _ in 0..<5_000 {
            let value = JSONValue.random(depth: 5, using: &random)
            #expect(try JSONValue(parsing: value.bytes) == value, "seed \(seed)")
            #expect(try JSONValue(parsing: value.canonical.bytes).canonical == value.canonical, "seed \(seed)")
            let damaged = random.damage(value.bytes)
            guard let read = try? JSONValue(parsing: damaged) else { continue }
            #expect(try JSONValue(parsing: read.bytes) == read, "seed \(seed)")
        }
    }
}

extension JSONValue {
    fileprivate static func random(depth: Int, using random: inout SeededRandom) -> JSONValue {
        switch Int.random(in: 0..<(depth > 0 ? 8 : 6), using: &random) {
        case 0: return .null
        case 1: return .bool(.random(using: &random))
        case 2: return .number(String(Int64(bitPattern: random.next())))
        case 3:
            let digits = { (random: inout SeededRandom) in String(Int.random(in: 0...999_999, using: &random)) }
            let exponent = Int.random(in: -JSONValue.exponentMax...JSONValue.exponentMax, using: &random)
            return .number(
                "-" + digits(&random) + ".0" + digits(&random) + (exponent.isMultiple(of: 2) ? "E" : "e")
                    + String(exponent))
        case 4, 5: return .string(random.text(0...12))
        case 6:
            let count = Int.random(in: 0...4, using: &random)
            return .array((0..<count).map { _ in self.random(depth: depth - 1, using: &random) })
        default:
            let count = Int.random(in: 0...4, using: &random)
            return .object(
                (0..<count).map { _ in
                    Member(random.text(0...3), self.random(depth: depth - 1, using: &random))
                })
        }
    }
}
