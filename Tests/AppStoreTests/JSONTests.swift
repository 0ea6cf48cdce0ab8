import Foundation
import TestRandom
import Testing

@testable import AppStore
@testable import Encoding

// Goal: for any bytes the reader returns an error or a value, and never two meanings for one text. Method: the grammar
// of RFC 8259 by table, and Foundation's reader as a second opinion.

@Suite struct JSONTests {
    @Test(arguments: [
        (
            #"{"a":[1,-2.5,true,false,null,"x"]}"#,
            JSON.object([
                "a": .array([
                    .integer(1), .number(-2.5), .bool(true), .bool(false), .null, .string("x"),
                ])
            ])
        ),
        (" \t\r\n{ } ", .object([:])), ("[ ]", .array([])), (#""""#, .string("")),
        (#""\"\\\/\b\f\n\r\tA""#, .string("\"\\/\u{8}\u{c}\n\r\tA")),
        (#""\ud83d\ude00é""#, .string("😀é")), (#""é😀""#, .string("é😀")), (#""\u0000""#, .string("\0")),
        ("9223372036854775807", .integer(.max)), ("-9223372036854775808", .integer(.min)),
        ("9223372036854775808", .number(9223372036854775808)), ("1e3", .number(1000)), ("-0", .integer(0)),
        ("1780000000123.4567", .number(1_780_000_000_123.4567)), ("0.5E-1", .number(0.05)),
    ])
    func `values are read as written`(_ text: String, _ expected: JSON) throws {
        #expect(try JSON(parsing: Array(text.utf8)) == expected)
        #expect(try JSON(parsing: expected.bytes) == expected)
    }

    @Test(arguments: [
        "", " ", "{", "[", "[1,]", "[,1]", "[1 2]", #"{"a"}"#, #"{"a":}"#, #"{"a":1,}"#, "{1:2}", "{a:1}", "01", "1.",
        ".5", "+1", "1e", "1e+", "--1", "-", "1e999", "NaN", "tru", "nul", "truex", "1 1", #"""#, #""\x""#, #""\u12""#,
        #""\u12g4""#, #""\ud800""#, #""\udc00\ud800""#, #""\ud800x""#, "\"\n\"", "\"\u{1}\"", "'a'", "[1]]",
        #"{"a":1,"a":1}"#, #"{"a":1,"\u0061":2}"#,
    ])
    func `anything else is an error`(_ text: String) {
        #expect(throws: JSON.SyntaxError.self) { try JSON(parsing: Array(text.utf8)) }
    }

    @Test func `text that is not UTF-8 is an error`() {
        for bytes in [[0xFF], [0xC0, 0x80], [0xED, 0xA0, 0x80], [0xE2, 0x82]] as [[UInt8]] {
            #expect(throws: JSON.SyntaxError.self) { try JSON(parsing: [0x22] + bytes + [0x22]) }
            #expect(throws: JSON.SyntaxError.self) { try JSON(parsing: [0x22, 0x5C, 0x6E] + bytes + [0x22]) }
        }
    }

    @Test func `nesting ends at the limit`() throws {
        func nested(_ depth: Int) -> [UInt8] {
            Array((String(repeating: "[", count: depth) + String(repeating: "]", count: depth)).utf8)
        }
        _ = try JSON(parsing: nested(JSON.depthLimit + 1))
        #expect(throws: JSON.SyntaxError.self) { try JSON(parsing: nested(JSON.depthLimit + 2)) }
    }

    @Test func `what is written is sorted, and Foundation reads the same`() throws {
        let value = JSON.object([
            "b": .string("\u{1}\"\\/é\n"), "a": .array([.integer(1), .number(1.5), .null, .bool(true)]),
        ])
        #expect(String(decoding: value.bytes, as: UTF8.self) == #"{"a":[1,1.5,null,true],"b":"\u0001\"\\/é\u000a"}"#)
        let read = try #require(try JSONSerialization.jsonObject(with: Data(value.bytes)) as? [String: Any])
        #expect(read["b"] as? String == "\u{1}\"\\/é\n" && (read["a"] as? [Any])?.count == 4)
    }

    @Test func `random bytes never crash the reader`() {
        var random = SeededRandom(seed: 42)
        let alphabet = Array(#"{}[]":,\u0e-+.1tfn \#u{e9}"#.utf8)
        var read = 0
        for _ in 0..<20_000 {
            let bytes = (0..<Int.random(in: 1...8, using: &random)).map { _ in
                alphabet[Int.random(in: 0..<alphabet.count, using: &random)]
            }
            guard let value = try? JSON(parsing: bytes) else { continue }
            read += 1
            #expect((try? JSON(parsing: value.bytes)) == value)
        }
        #expect(read > 0)
    }

    /// Goal: a value that is written is read again unchanged, by us and by Foundation. Damaged bytes are an error or a
    /// value, never a crash.
    @Test func `random values are read back, damaged bytes do no harm`() throws {
        var random = SeededRandom(announcing: "JSON of Apple")
        let seed = random.seed
        for _ in 0..<5_000 {
            let value = JSON.random(depth: 5, using: &random)
            let bytes = value.bytes
            #expect(try JSON(parsing: bytes) == value, "seed \(seed)")
            #expect(
                (try? JSONSerialization.jsonObject(with: Data(bytes), options: .fragmentsAllowed)) != nil,
                "seed \(seed)")
            let damaged = random.damage(bytes)
            guard let read = try? JSON(parsing: damaged) else { continue }
            #expect(try JSON(parsing: read.bytes) == read, "seed \(seed)")
        }
    }
}

extension JSON {
    fileprivate static func random(depth: Int, using random: inout SeededRandom) -> JSON {
        switch Int.random(in: 0..<(depth > 0 ? 8 : 6), using: &random) {
        case 0: return .null
        case 1: return .bool(.random(using: &random))
        case 2: return .integer(Int64(bitPattern: random.next()))
        case 3:
            // A whole number that fits would be read as an integer.
            let value = Double(bitPattern: random.next())
            return value.isFinite && Int64(exactly: value) == nil ? .number(value) : .number(0.5)
        case 4, 5: return .string(random.text(0...12))
        case 6:
            let count = Int.random(in: 0...4, using: &random)
            return .array((0..<count).map { _ in self.random(depth: depth - 1, using: &random) })
        default:
            var members: [String: JSON] = [:]
            for _ in 0..<Int.random(in: 0...4, using: &random) {
                members[random.text(0...6)] = self.random(depth: depth - 1, using: &random)
            }
            return .object(members)
        }
    }
}

@Suite struct Base64Tests {
    @Test func `both alphabets agree with Foundation for every length`() {
        var random = SeededRandom(seed: 7)
        for length in 0...100 {
            let bytes = (0..<length).map { _ in UInt8.random(in: 0...255, using: &random) }
            let standard = Data(bytes).base64EncodedString()
            #expect(Base64.decodeStandard(Array(standard.utf8)[...]) == bytes)
            #expect(Base64.decodeURL(Array(TestAuthority.base64url(bytes).utf8)[...]) == bytes)
        }
    }

    @Test(arguments: ["A", "AA==", "AA=", "AB", "AAB", "AA A", "AA\n", "+/AA", "AAAAA", "=", "é"])
    func `base64url has one spelling`(_ text: String) {
        #expect(Base64.decodeURL(Array(text.utf8)[...]) == nil)
    }

    @Test(arguments: ["A", "AA", "AAA", "A===", "AA=A", "AB==", "AAB=", "====", "-_AA", "AA==\n", "AA==AA=="])
    func `standard base64 has one spelling`(_ text: String) {
        #expect(Base64.decodeStandard(Array(text.utf8)[...]) == nil)
    }

    @Test func `text that takes more than linear time to compare is refused, and a name of many marks is not`() {
        func read(_ text: String) -> JSON? { try? JSON(parsing: Array(text.utf8)) }
        let marks = String(repeating: "\u{301}\u{316}", count: 16)
        #expect(read(#"{"\#(marks)":1}"#) == nil)
        #expect(read(#"{"a":"e\#(marks)"}"#) == nil)
        #expect(read(#"["\u0041\#(marks)"]"#) == nil)
        let escaped = String(repeating: #"\u0301\u0316"#, count: 16)
        #expect(read(#"["\#(escaped)"]"#) == nil)
        let name = "e" + marks.unicodeScalars.prefix(30).map(String.init).joined()
        #expect(read(#"["\#(name)\#(name)"]"#) == .array([.string(name + name)]))
        #expect(read(#"["\u1161\u1161\u1161"]"#) != nil)
    }
}
