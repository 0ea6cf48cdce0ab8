import AppStore
import Foundation

/// Whether a reader's time grows faster than its input: measured with inputs of one kind in doubled sizes.
///
/// A linear reader takes twice the time for twice the bytes, a quadratic one four times. CPU time, the best of several.
package struct FuzzGrowth: Sendable {
    package struct Row: Sendable {
        package let parser: ParserProbe.Parser
        package let kind: String
        /// The CPU time for each size, smallest first.
        package let times: [(bytes: Int, cpu: Duration)]
        /// The largest growth for one doubling, among times long enough to be measured; 0: none was.
        package let factor: Double

        package var isLinear: Bool { factor < FuzzGrowth.factorMax }
    }

    /// Between linear, 2, and quadratic, 4.
    package static let factorMax = 3.2
    /// Shorter times say more about the clock than about the reader.
    private static let cpuMin: Duration = .milliseconds(1)
    private static let repetitions = 5
    private static let doublings = 3

    private let corpus: FuzzCorpus

    package init(_ corpus: FuzzCorpus) { self.corpus = corpus }

    package func run(_ parser: ParserProbe.Parser) async throws -> [Row] {
        var rows: [Row] = []
        for (kind, most, make) in Self.kinds(parser) {
            var times: [(bytes: Int, cpu: Duration)] = []
            for shift in (0...Self.doublings).reversed() {
                let bytes = make(most >> shift)
                var best = Duration.seconds(3600)
                for _ in 0..<Self.repetitions {
                    let probe = try corpus.probe()
                    let start = FuzzRun.cpuTime
                    _ = await probe.feed(bytes, to: parser)
                    best = min(best, FuzzRun.cpuTime - start)
                }
                times.append((bytes.count, best))
            }
            // The factor is the mean over two doublings: a single one may just exceed a cache.
            let factors = zip(times, times.dropFirst(2)).compactMap { small, large in
                small.cpu < Self.cpuMin ? nil : (large.cpu / small.cpu).squareRoot()
            }
            rows.append(Row(parser: parser, kind: kind, times: times, factor: factors.max() ?? 0))
        }
        return rows
    }

    private typealias Kind = (name: String, most: Int, make: @Sendable (Int) -> [UInt8])

    /// Kinds of input, each for about the wanted number of bytes; the largest is near the reader's own limit.
    private static func kinds(_ parser: ParserProbe.Parser) -> [Kind] {
        switch parser {
        case .jws, .notification, .inspect:
            json.map { name, make -> Kind in (name, 47_000, { jws(make($0)) }) } + headers
        case .verifyReceipt, .answers: json.map { name, make -> Kind in (name, 2 << 20, make) } + answers
        case .receipt: receipts
        case .certificates: certificates
        case .base64: texts
        case .proof: proofs
        }
    }

    private static let json: [(String, @Sendable (Int) -> [UInt8])] = [
        ("a long string", { text("{\"a\":\"" + repeating("x", $0) + "\"}") }),
        ("an escaped string", { text("{\"a\":\"" + repeating("\\u00e9", $0) + "\"}") }),
        ("a long number", { text("{\"a\":" + repeating("9", $0) + "}") }),
        ("a long fraction", { text("{\"a\":0." + repeating("1", $0) + "}") }),
        ("a key of combining marks", { text("{\"" + repeating("\u{301}\u{316}", $0) + "\":1}") }),
        ("a value of combining marks", { text("{\"bundleId\":\"" + repeating("\u{301}\u{316}", $0) + "\"}") }),
        ("a value of vowel signs", { text("{\"bundleId\":\"" + repeating("\u{1161}\u{0DCF}", $0) + "\"}") }),
        ("a key of flags", { text("{\"" + repeating("\u{1F1E6}", $0) + "\":1}") }),
        ("many members", { size in text("{" + (0..<size / 12).map { "\"k\($0)\":1" }.joined(separator: ",") + "}") }),
        ("many elements", { text("{\"a\":[" + repeating("1,", $0) + "1]}") }),
        ("many empty objects", { text("{\"a\":[" + repeating("{},", $0) + "{}]}") }),
        ("brackets without end", { text("{\"a\":" + repeating("[", $0)) }),
        ("white space", { text("{\"a\":" + repeating(" ", $0) + "1}") }),
        ("control characters", { text("{\"transactionId\":\"" + repeating("\\u001b", $0) + "\"}") }),
    ]

    private static let headers: [Kind] = [
        ("many certificates", 47_000, { size in jws(header: "[" + repeating("\"QUJD\",", size) + "\"\"]") }),
        ("one large certificate", 47_000, { size in jws(header: "[\"" + repeating("MIIB", size) + "\",\"\",\"\"]") }),
        ("dots", 65_000, { Array(repeating: UInt8(ascii: "."), count: $0) }),
        ("a long signature", 60_000, { text("e30.e30." + repeating("A", $0)) }),
    ]

    private static let answers: [Kind] = [
        (
            "many purchases", 4 << 20,
            { size in
                entries(size / 90) { "\"transaction_id\":\"\($0)\"" }
            }
        ),
        ("one purchase again and again", 4 << 20, { size in entries(size / 90) { _ in "\"transaction_id\":\"1\"" } }),
        (
            "ids of combining marks", 1 << 20,
            { size in
                entries(4) { "\"transaction_id\":\"\($0)" + repeating("\u{301}\u{316}", size / 4) + "\"" }
            }
        ),
    ]

    private static let receipts: [Kind] = [
        ("sequences without end", 1 << 20, { bytes([0x30, 0x80], $0) }),
        ("sequences with ends", 1 << 20, { bytes([0x30, 0x80], $0 / 2) + bytes([0, 0], $0 / 2) }),
        (
            "octet strings inside one another", 1 << 20,
            { container(bytes([0x24, 0x80], $0 / 2) + bytes([0, 0], $0 / 2)) }
        ),
        ("an octet string of many segments", 1 << 20, { container(element(0x24, bytes([0x04, 1, 0x31], $0))) }),
        ("many attributes", 1 << 20, { size in content(bytes([0x30, 9, 2, 2, 0x27, 0x0F, 2, 1, 1, 0x04, 0], size)) }),
        (
            "many purchases", 1 << 20,
            { size in
                let purchase = element(
                    0x31,
                    [
                        0x30, 11, 2, 2, 6, 0xA6, 2, 1, 1, 4, 3, 0x0C, 1, 0x70, 0x30, 11, 2, 2, 6, 0xA7, 2, 1, 1, 4, 3,
                        0x0C, 1, 0x31,
                    ])
                return content(bytes(element(0x30, [2, 1, 17, 2, 1, 1], element(0x04, purchase)), size))
            }
        ),
        (
            "one purchase of many attributes", 1 << 20,
            { size in
                let attributes = bytes([0x30, 9, 2, 2, 0x27, 0x0F, 2, 1, 1, 0x04, 0], size)
                return content(element(0x30, [2, 1, 17, 2, 1, 1], element(0x04, element(0x31, attributes))))
            }
        ),
        (
            "attributes of indefinite length", 1 << 20,
            { size in content(bytes([0x30, 0x80, 2, 1, 9, 2, 1, 1, 0x24, 0x80, 0x04, 0, 0, 0, 0, 0], size)) }
        ),
    ]

    private static let certificates: [Kind] = [
        ("sequences without end", 1 << 20, { bytes([0x30, 0x80], $0) }),
        ("many small ones", 1 << 20, { bytes([0x30, 0], $0) }),
        (
            "a certificate of many elements", 1 << 18,
            { size in bytes(element(0x30, bytes([0x30, 0], size / 3)), size) }
        ),
        (
            "definite sequences inside one another", 1 << 16,
            { size in
                var nested: [UInt8] = []
                for _ in 0..<size / 4 { nested = element(0x30, nested) }
                return nested + nested + nested
            }
        ),
        (
            "lines of PEM", 1 << 18,
            { text("-----BEGIN CERTIFICATE-----\n" + repeating("QUJD\n", $0) + "-----END CERTIFICATE-----\n") }
        ),
        (
            "many PEM", 1 << 18,
            { text(repeating("-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n", $0)) }
        ),
    ]

    private static let proofs: [Kind] = [
        ("spaces", 1 << 20, { text("MIIB" + repeating("QU D", $0)) }),
        ("percent signs", 1 << 20, { text(repeating("%2525", $0)) }),
        ("backslashes", 1 << 20, { text(repeating("\\", $0) + "n") }),
        ("quotes", 1 << 20, { text(repeating("\"", $0)) }),
        ("escaped quotes", 1 << 20, { text(repeating("\\\"", $0)) }),
        ("invisible characters", 1 << 20, { text(repeating("\u{FEFF}", $0)) }),
        ("brackets without end", 1 << 20, { text(repeating("{\"Payload\":", $0)) }),
        (
            "members", 1 << 20,
            { size in text("{" + (0..<size / 20).map { "\"p\($0)\":\"QUJD\"" }.joined(separator: ",") + "}") }
        ),
        ("a member of combining marks", 1 << 20, { text("{\"" + repeating("\u{301}\u{316}", $0) + "\":\"QUJD\"}") }),
        ("base64 of base64", 1 << 20, { BaseText.standard.encode(BaseText.standard.encode(bytes([0x41], $0))) }),
        ("base64 of spaces", 1 << 20, { BaseText.standard.encode(bytes([0x20, 0x41], $0)) }),
    ]

    private static let texts: [Kind] = [
        ("letters", 8 << 20, { bytes([UInt8(ascii: "Q")], $0) }),
        ("line breaks", 8 << 20, { bytes(Array("QUJD\n".utf8), $0) }),
        ("padding", 1 << 20, { bytes([UInt8(ascii: "=")], $0) }),
        (
            "a property list of many keys", 40_000,
            { size in
                let list = "{" + (0..<size / 16).map { "\"k\($0)\"=\"v\";" }.joined() + "}"
                return BaseText.standard.encode(Array(list.utf8))
            }
        ),
        (
            "a property list of combining marks", 40_000,
            { size in
                BaseText.standard.encode(Array("{\"\(repeating("\u{301}\u{316}", size))\"=\"v\";}".utf8))
            }
        ),
        ("digits", 1 << 20, { bytes([UInt8(ascii: "9")], $0) }),
    ]
}

// MARK: - Writing

private func repeating(_ text: String, _ bytes: Int) -> String {
    String(repeating: text, count: max(1, bytes / text.utf8.count))
}

private func text(_ text: String) -> [UInt8] { Array(text.utf8) }

private func bytes(_ unit: [UInt8], _ count: Int) -> [UInt8] {
    var bytes: [UInt8] = []
    bytes.reserveCapacity(count + unit.count)
    while bytes.count < count { bytes.append(contentsOf: unit) }
    return bytes
}

/// A JWS over a payload, with a header that no verifier believes.
private func jws(_ payload: [UInt8]) -> [UInt8] {
    let header = #"{"alg":"ES256","x5c":["QUJD","QUJD","QUJD"]}"#
    return Array(
        [Array(header.utf8), payload, Array(repeating: 7, count: 64)].map(BaseText.url.encode).joined(separator: [0x2E])
    )
}

private func jws(header x5c: String) -> [UInt8] {
    let header = #"{"alg":"ES256","x5c":\#(x5c)}"#
    let payload = #"{"transactionId":"1","bundleId":"com.example.game","environment":"Production","signedDate":1}"#
    return Array(
        [Array(header.utf8), Array(payload.utf8), Array(repeating: 7, count: 64)].map(BaseText.url.encode)
            .joined(separator: [0x2E]))
}

private func entries(_ count: Int, _ id: (Int) -> String) -> [UInt8] {
    let list = (0..<max(1, count)).map { "{\"product_id\":\"p\",\"purchase_date_ms\":\"1780000000000\",\(id($0))}" }
    return text("{\"status\":0,\"receipt\":{\"in_app\":[\(list.joined(separator: ","))]}}")
}

private func element(_ tag: UInt8, _ contents: [UInt8]...) -> [UInt8] {
    let joined = Array(contents.joined())
    let length = withUnsafeBytes(of: joined.count.bigEndian) { Array($0.drop { $0 == 0 }) }
    return [tag] + (joined.count < 0x80 ? [UInt8(joined.count)] : [0x80 | UInt8(length.count)] + length) + joined
}

/// A receipt over a set of attributes, without a valid signature.
private func content(_ attributes: [UInt8]) -> [UInt8] { container(element(0x04, element(0x31, attributes))) }

private func container(_ octets: [UInt8]) -> [UInt8] {
    let signedData: [UInt8] = [0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x02]
    let data: [UInt8] = [0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x07, 0x01]
    let digest = element(0x30, [0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01])
    let rsa = element(0x30, [0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01])
    let signer = element(
        0x30, [2, 1, 1], element(0x30, [0x30, 0], [2, 1, 1]), digest, rsa,
        element(0x04, Array(repeating: 7, count: 256)))
    return element(
        0x30, signedData,
        element(
            0xA0,
            element(
                0x30, [2, 1, 1], element(0x31, digest), element(0x30, data, element(0xA0, octets)),
                element(0xA0, []), element(0x31, signer))))
}
