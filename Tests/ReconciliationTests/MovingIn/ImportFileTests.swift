import Foundation
import Testing

@testable import Encoding
@testable import MovingIn

/// Goal: a line that cannot be read costs no other line, and any file is read in bounded memory. Method: tables of
/// small files, read in pieces of every size, so that every position is once the border of a piece.
@Suite struct ImportFileTests {
    /// One text for each record: `7 transactionId=1 userId=u`, or `7! why`.
    static func read(
        _ content: [UInt8], _ format: ImportFile.Format = .csv, from origin: ImportOrigin? = nil, piece: Int = 7,
        requiring: [ImportColumn] = []
    ) throws -> [String] {
        var rest = content[...]
        var file = ImportFile(format, from: origin) {
            defer { rest = rest.dropFirst(piece) }
            return Array(rest.prefix(piece))
        }
        var seen: [String] = []
        while let record = try file.next(requiring: requiring) {
            switch record.values {
            case .failure(let unreadable): seen.append("\(record.line)! \(unreadable.problem)")
            case .success(let values):
                let words = ImportColumn.allCases.compactMap { column in
                    values[column].map { value in
                        switch value {
                        case .text(let text): "\(column.rawValue)=\(text)"
                        case .number(let text): "\(column.rawValue):\(text)"
                        case .other: "\(column.rawValue)?"
                        }
                    }
                }
                seen.append(([String(record.line)] + words).joined(separator: " "))
            }
        }
        return seen
    }

    static let csv: [(String, [String])] = [
        ("transactionId,userId\n1,u\n2,v\n", ["2 transactionId=1 userId=u", "3 transactionId=2 userId=v"]),
        // Column names as people write them, line ends as spreadsheets write them, a byte order mark.
        ("\u{FEFF}Transaction ID,user_id\r\n1,u\r\n", ["2 transactionId=1 userId=u"]),
        // The last line has no line end.
        ("userId\nu", ["2 userId=u"]),
        ("userId\r\nu\r", ["2 userId=u"]),
        // Empty lines are no records; empty values are absent; unknown columns are skipped.
        ("userId,goods,item\n\nu,6 coins,\n \n,,i\n", ["3 userId=u", "5 item=i"]),
        // Quotes: commas, quotes, line ends.
        (
            "userId,item\n\"a,b\",\"say \"\"hi\"\"\"\n\"x\ny\",z\nw,\"\"\n",
            ["2 userId=a,b item=say \"hi\"", "3 userId=x\ny item=z", "5 userId=w"]
        ),
        ("userId,item\n\"a\r\n\r\nb\",c\r\nd,e\r\n", ["2 userId=a\n\nb item=c", "5 userId=d item=e"]),
        // A broken line is one line only.
        (
            "userId,item\na,b,c\nd\ne,f\n",
            ["2! has 3 values for 2 columns", "3! has 1 value for 2 columns", "4 userId=e item=f"]
        ),
        (
            "userId,item\na\"b,c\n\"d\"e,f\ng,h\n",
            [
                "2! has a quote inside an unquoted value", "3! has text after a closing quote",
                "4 userId=g item=h",
            ]
        ),
        // A quote is never closed, or it is closed by a quote in the next line: the lines after it are read as they
        // are.
        (
            "userId,item\n\"a,b\nc,d\ne,f\n",
            ["2! opens a quote that is not closed as it should be", "3 userId=c item=d", "4 userId=e item=f"]
        ),
        (
            "userId,item\n\"a,b\nc,\"d\"\ne,f\n",
            ["2! opens a quote that is not closed as it should be", "3 userId=c item=d", "4 userId=e item=f"]
        ),
        ("userId,item\nc,d\n\"a,b", ["2 userId=c item=d", "3! opens a quote that is not closed"]),
        // The file is cut off in the middle of a line.
        ("userId,item\na,b\nc", ["2 userId=a item=b", "3! has 1 value for 2 columns"]),
        ("userId\n", []),
        // Semicolons and tabs, also named as a spreadsheet names its separator; quotes hold them too.
        ("userId;item\r\nu;\"a;b\"\r\n", ["2 userId=u item=a;b"]),
        ("userId\titem\nu, v\ti\n", ["2 userId=u, v item=i"]),
        ("sep=;\nuserId;item\nu;i\n", ["3 userId=u item=i"]),
        ("\u{FEFF}\"user id\";\"note, not ours\"\nu;n\n", ["2 userId=u"]),
        // Files that were put together name their columns again.
        ("userId,item\nu,i\nuserId,item\n\"userId\",item\nv,j\n", ["2 userId=u item=i", "5 userId=v item=j"]),
    ]

    @Test("CSV as RFC 4180 has it, and as it is not", arguments: csv.indices)
    func separatedValues(index: Int) throws {
        let (content, expected) = Self.csv[index]
        for piece in [1, 2, 3, 5, 1000] {
            #expect(try Self.read(Array(content.utf8), piece: piece) == expected, "in pieces of \(piece)")
        }
    }

    @Test("JSON lines: each line is an object or nothing")
    func jsonLines() throws {
        let content = """
            \u{FEFF}{"transactionId": "1", "user_id": 7, "item": null, "role": "", "goods": [1]}

            {"userId": true, "productId": {}, "item": ["a"], "quantity": 1.5}
            [{"userId": "u"}]
            {"userId": "u"
            {"userId": "u"} {"userId": "v"}
            {"userId": "first", "userId": "second"}
            {"userId": "\\u0000"}
            """
        for piece in [1, 4, 1000] {
            #expect(
                try Self.read(Array(content.utf8), .jsonl, piece: piece) == [
                    "1 transactionId=1 userId:7", "3 userId? productId? item? quantity:1.5", "4! is no JSON object",
                    "5! is no JSON object", "6! is no JSON object", "7 userId=second", "8! is no JSON object",
                ])
        }
    }

    @Test("a line of any length costs itself alone, also inside quotes, and no more memory than its limit")
    func hugeLines() throws {
        let limit = LineReader.lineBytesMax
        let most = String(repeating: "x", count: limit)
        for ending in ["\n", "\r\n"] {
            let content = ["userId", most, most + "y", String(repeating: "z", count: 3 * limit), "u", ""]
            #expect(
                try Self.read(Array(content.joined(separator: ending).utf8), piece: 60_000) == [
                    "2 userId=\(most)", "3! is longer than \(limit) bytes", "4! is longer than \(limit) bytes",
                    "5 userId=u",
                ])
        }
        let last = "userId\n" + String(repeating: "z", count: 2 * limit)
        #expect(try Self.read(Array(last.utf8), piece: 60_000) == ["2! is longer than \(limit) bytes"])
        // More lines than a record may have, then more bytes.
        let lines = (0..<ImportFile.recordLinesMax).map { "l\($0)" }
        let open = (["userId", "\"a"] + lines).joined(separator: "\n")
        #expect(
            try Self.read(Array(open.utf8)) == ["2! opens a quote that is not closed as it should be"]
                + lines.enumerated().map { "\($0.offset + 3) userId=\($0.element)" })
        let half = String(repeating: "h", count: limit / 2 + 1)
        #expect(
            try Self.read(Array("userId\n\"\(half)\n\(half)\n\(half)\nu\n".utf8), piece: 9999).map { $0.prefix(20) }
                == ["2! opens a quote tha", "3 userId=hhhhhhhhhhh", "4 userId=hhhhhhhhhhh", "5 userId=u"])
    }

    @Test("what is no UTF-8 is one line; a file in UTF-16, without a header or a column is refused whole")
    func encodings() throws {
        #expect(
            try Self.read(Array("userId\n".utf8) + [0xFF, 0x0A] + Array("ü\n".utf8)) == [
                "2! is no UTF-8", "3 userId=ü",
            ])
        for (content, problem) in [
            (Array("".utf8), "is empty, or its first line is; it must name the columns"),
            (Array("\nuserId\nu\n".utf8), "is empty, or its first line is; it must name the columns"),
            ([0xFF, 0xFE] + Array("u\0\n\0".utf8), "is UTF-16; it must be UTF-8"),
            (Array("\"userId\nu\n".utf8), "has a first line that does not name columns"),
            (Array("token\n1\n".utf8), "has no column userId; needed: userId; found: token"),
            (
                Array("tok\u{7}en;\"Käufer, alt\"\nu;1\n".utf8),
                "has no column userId; needed: userId; found: tok?en, Käufer, alt"
            ),
            ([0x1F, 0x8B, 8, 0] + Array("\n".utf8), "is compressed with gzip; unpack it first: gunzip"),
            (Array("PK\u{3}\u{4}x\n".utf8), "is a ZIP archive or a spreadsheet; export it as CSV"),
            (Array("PAR1\n".utf8), "is a Parquet file; export it as CSV"),
            (Array("userId,user_id\nu,v\n".utf8), "has two columns userId"),
        ] {
            #expect(throws: ImportFileError(problem)) { try Self.read(content, requiring: [.userId]) }
        }
    }

    @Test("JSON lines whose first object has other columns are refused whole; one that lacks a value is one line")
    func jsonColumns() throws {
        let needed: [ImportColumn] = [.transactionId, .userId]
        #expect(
            throws: ImportFileError(
                "has no column userId; needed: transactionId, userId; found: transaction_id, customer")
        ) {
            try Self.read(Array(#"{"transaction_id": 1, "customer": "u"}"#.utf8), .jsonl, requiring: needed)
        }
        #expect(
            try Self.read(
                Array("{\"transactionId\": 1}\n{\"transactionId\": 2, \"user\": \"u\"}\n".utf8), .jsonl,
                requiring: needed)
                == ["1 transactionId:1", "2 transactionId:2"])
    }

    @Test("a file says what nobody knows of it, which it was, and whether its last line has an end")
    func whatIsNoted() throws {
        func noted(_ content: String, _ format: ImportFile.Format = .csv) throws -> ImportFile {
            var pieces = [Array(content.utf8)]
            var file = ImportFile(format) { pieces.popLast() ?? [] }
            while try file.next(requiring: []) != nil {}
            return file
        }
        let csv = try noted("userId,goods,Price\nu,1,2\n")
        #expect(csv.ignored == ["goods", "Price"] && csv.endsWithNewline)
        // SHA-256 of the same bytes by another program.
        #expect(csv.sha256 == "4d1c816572e6625923c2c127c765f9b22a0e247a40ca0b4f1afbc9181912d74f")
        let json = try noted("{\"goods\": 1}\n{\"goods\": 2, \"userId\": \"u\"}", .jsonl)
        #expect(json.ignored == ["goods"] && !json.endsWithNewline)
        #expect(ImportFile.format(ofName: "a.b/Old.CSV") == .csv && ImportFile.format(ofName: "x.ndjson") == .jsonl)
        #expect(ImportFile.format(ofName: "transactions_17.csv.gz") == .csv && ImportFile.format(ofName: "x.gz") == nil)
        #expect(ImportFile.format(ofName: "-") == nil && ImportFile.format(ofName: "x.txt") == nil)
    }
}
