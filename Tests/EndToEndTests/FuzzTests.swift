import Adversary
import AppStoreSimulator
import Foundation
import Glibc
import TestRandom
import Testing

extension EndToEnd {
    /// Requests with arbitrary bytes: real sockets, one ingest process, and no HTTP library in between.
    ///
    /// Every case follows from the seed and its number, and a failure names both.
    @Suite(.serialized) struct Fuzz {
        private static let seeds: [UInt64] = [3, SeededRandom(announcing: "fuzz").seed]
        private static let lanes = 8
        private static let casesMax = 3000
        private static let time: Duration = .seconds(5)
        /// For a debug build that reads eight bodies of 1 MiB at once: far above what was seen, far below a leak per
        /// case.
        private static let residentMegabytesMax = 400

        /// Goal: no bytes make ingest crash, answer 5xx other than 503, or refuse without a problem document; and its
        /// memory stays bounded.
        /// Method: requests with one to three things wrong in head, framing or body, mutated bytes, and requests sent
        /// in pieces, from eight connections at once. Afterwards a good post is accepted, by the same process.
        @Test(arguments: seeds)
        func brokenRequests(seed: UInt64) async throws {
            try await run(seed: seed) { number, random in
                let request = BrokenRequest.make(&random, number: number)
                return RawExchange(pieces: request.split(&random), isComplete: false)
            }
        }

        /// Goal: no body makes ingest crash or fail; what cannot be read is the sender's fault and says so.
        /// Method: good posts with mutated bytes, and JSON that is deep, huge, doubled, no UTF-8, or no JSON, half of them as
        /// receipts, the others in a batch, as orders and as reports. Each is a good HTTP request and must be answered:
        /// 2xx, or 4xx with a problem document.
        @Test(arguments: seeds)
        func brokenBodies(seed: UInt64) async throws {
            try await run(seed: seed, understood: [200, 201, 202]) { number, random in
                let target = random.pick(BrokenBody.targets)
                let body = BrokenBody.make(&random, number: number, for: target)
                let head = """
                    POST /v1/\(target.rawValue) HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
                    Authorization: Bearer \(ConfigurationFile.Caller.gateway.rawValue)\r\n\
                    Content-Length: \(body.count)\r\n\r\n
                    """
                return RawExchange(pieces: [Array(head.utf8) + body], isComplete: true)
            }
        }

        /// Goal: every server reads the same end of a request (ASVS 4.2.1): no body can hide a second request.
        /// Method: bodies that hold a whole second request, framed in every way that two servers could read
        /// differently. At most one answer comes for each, and never one to the hidden request (405).
        @Test func nothingIsSmuggled() async throws {
            try await System.run(System.Shape(endsQuiet: false)) { system in
                let process = try await system.start(.ingest)
                let port = try await process.port(of: "ingest")
                let hidden = "DELETE /v1/receipts HTTP/1.1\r\nHost: x\r\n\r\n"
                for framing in [
                    "Content-Length: 5\r\nTransfer-Encoding: chunked",
                    "Transfer-Encoding: chunked\r\nContent-Length: 5",
                    "Content-Length: 5\r\nContent-Length: 60", "Content-Length: 5, 60", "Content-Length: +5",
                    "Content-Length: -5", "Content-Length: 0x5", "Content-Length: 5 5", "Content-Length : 5",
                    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
                    "Transfer-Encoding: identity, chunked ,",
                    "Transfer-Encoding : chunked", "Transfer-Encoding: xchunked",
                    "Transfer-Encoding: chunked, identity",
                    "Transfer-Encoding:\u{0B}chunked", "X: y\r\n Transfer-Encoding: chunked",
                    "Content-Length: 18446744073709551621",
                ] {
                    let text = "POST /v1/receipts HTTP/1.1\r\nHost: x\r\n\(framing)\r\n\r\n0\r\n\r\n\(hidden)"
                    let answers = try await RawExchange(pieces: [Array(text.utf8)], isComplete: false).run(port)
                    #expect(answers.count <= 1, "\(framing)")
                    #expect(!answers.contains { $0.status == 405 }, "\(framing)")
                    for answer in answers {
                        #expect((400..<500).contains(answer.status), "\(framing)")
                        #expect(answer.isProblem, "\(framing): \(answer.status)")
                    }
                }
            }
        }

        private func run(
            seed: UInt64, understood: [Int] = [202],
            _ make: @escaping @Sendable (Int, inout SeededRandom) -> RawExchange
        ) async throws {
            print("fuzz: seed \(seed)")
            try await System.run(System.Shape(endsQuiet: false)) { system in
                let process = try await system.start(.ingest)
                let port = try await process.port(of: "ingest")
                let tally = try await withThrowingTaskGroup(of: [Int: Int].self) { group in
                    for lane in 0..<Self.lanes {
                        group.addTask { try await Self.run(lane, port, seed: seed, make) }
                    }
                    return try await group.reduce(into: [:]) { $0.merge($1, uniquingKeysWith: +) }
                }
                let resident = try process.peakMegabytes
                print("fuzz: answers \(tally.sorted { $0.key < $1.key }), peak \(resident) MB")
                #expect(process.isRunning)
                #expect(resident < Self.residentMegabytesMax)
                // Some requests were understood and some were not: otherwise the cases would prove nothing.
                for status in understood + [400] { #expect(tally[status] ?? 0 > 0, "\(status)") }
                let sale = try await system.appStore.sell()
                let answer = try await system.client.post(
                    .init(userId: "u1", signedTransaction: sale.signedTransaction))
                #expect(answer.status == 202)
            }
        }

        /// Runs every eighth case, until the time is up; returns how often each status came.
        private static func run(
            _ lane: Int, _ port: Int, seed: UInt64, _ make: (Int, inout SeededRandom) -> RawExchange
        ) async throws -> [Int: Int] {
            let deadline = ContinuousClock.now + time
            var tally: [Int: Int] = [:]
            for number in stride(from: lane, to: casesMax, by: lanes) where ContinuousClock.now < deadline {
                var random = SeededRandom(seed: seed &+ UInt64(number) &* 0x1000_0000_01B3)
                let exchange = make(number, &random)
                let answers = try await exchange.run(port)
                judge(answers, exchange, "seed \(seed) case \(number)")
                for answer in answers { tally[answer.status, default: 0] += 1 }
            }
            return tally
        }

        private static func judge(_ answers: [RawAnswer], _ exchange: RawExchange, _ name: String) {
            if exchange.isComplete { #expect(answers.count == 1, "\(name)") }
            for answer in answers {
                #expect(answer.status < 500 || answer.status == 503, "\(name): \(answer.status)")
                if answer.status >= 400 { #expect(answer.isProblem, "\(name): \(answer.status) \(answer.text)") }
            }
        }
    }
}

extension SeededRandom {
    mutating func below(_ limit: Int) -> Int { Int.random(in: 0..<max(limit, 1), using: &self) }
    mutating func pick<Element>(_ elements: [Element]) -> Element { elements[below(elements.count)] }
    mutating func bytes(_ count: Int) -> [UInt8] { (0..<count).map { _ in UInt8(truncatingIfNeeded: next()) } }
}

extension [UInt8] {
    /// Makes one to four small changes.
    mutating func mutate(_ random: inout SeededRandom, with words: [String]) {
        for _ in 0...random.below(4) {
            let place = random.below(count + 1)
            let length = Swift.min(count - place, random.below(20))
            switch random.below(7) {
            case 0 where place < count: self[place] ^= 1 << UInt8(random.below(8))
            case 1 where place < count: self[place] = UInt8(truncatingIfNeeded: random.next())
            case 2: insert(contentsOf: random.bytes(1 + random.below(4)), at: place)
            case 3: removeSubrange(place..<place + length)
            case 4: insert(contentsOf: Array(self[place..<place + length]), at: place)
            case 5: removeSubrange(place...)
            default: insert(contentsOf: Array(random.pick(words).utf8), at: place)
            }
        }
    }

    /// The bytes in pieces, as a network or a slow client would deliver them.
    func split(_ random: inout SeededRandom) -> [[UInt8]] {
        guard random.below(3) == 0, count > 2 else { return [self] }
        let cuts = (0..<random.below(3) + 1).map { _ in random.below(count) }.sorted()
        return zip([0] + cuts, cuts + [count]).map { Array(self[$0..<$1]) }.filter { !$0.isEmpty }
    }
}

/// A malformed request.
private enum BrokenRequest {
    private static let words = [
        "\r\n", "\r\n\r\n", "\n", "\r", "\0", ":", " ", "HTTP/1.1", "GET / HTTP/1.1\r\n", "0\r\n\r\n", "%00", "%zz",
        "\u{FFFD}",
        "Transfer-Encoding: chunked\r\n", "Content-Length: 3\r\n", "Connection: close\r\n", "Upgrade: h2c\r\n",
        "?wait=99999",
    ]

    static func make(_ random: inout SeededRandom, number: Int) -> [UInt8] {
        // Each kind comes in turn, so that a short run has them all.
        switch number % 12 {
        case 0: return plain(&random, line: line(&random))
        case 1: return plain(&random, headers: framing(&random))
        case 2: return chunked(&random)
        case 3: return plain(&random, headers: [giantHeader(&random)])
        case 4:
            return plain(&random, headers: (0..<random.below(400)).map { "X-\($0): \($0)" })
        case 5: return (0..<2 + random.below(40)).flatMap { _ in plain(&random, closes: false) } + plain(&random)
        case 6: return plain(&random, headers: ["Content-Type: \(random.pick(contentTypes))"])
        case 7: return random.bytes(random.below(2000))
        case 8: return Array(plain(&random).prefix(random.below(400)))
        case 9: return Array(random.pick(otherProtocols).utf8) + random.bytes(random.below(200))
        case 10: return plain(&random, headers: [random.pick(strangeHeaders)])
        default:
            var bytes = plain(&random)
            bytes.mutate(&random, with: words)
            return bytes
        }
    }

    private static func plain(
        _ random: inout SeededRandom, line: String = "POST /v1/receipts HTTP/1.1", headers: [String] = [],
        closes: Bool = true
    ) -> [UInt8] {
        let body = #"{"appId":"game","userId":"f\#(random.below(1_000_000))","receipt":"QUJD"}"#
        var lines = [line, "Host: x", "Authorization: Bearer \(ConfigurationFile.Caller.gateway.rawValue)"] + headers
        if closes { lines.append("Connection: close") }
        if !headers.contains(where: { $0.lowercased().hasPrefix("content-length") || $0.contains("ncoding") }) {
            lines.append("Content-Length: \(body.utf8.count)")
        }
        return Array((lines.joined(separator: "\r\n") + "\r\n\r\n" + body).utf8)
    }

    private static func line(_ random: inout SeededRandom) -> String {
        let method = random.pick([
            "GET", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "get", "G\0T", "", "PRI", "M-SEARCH",
            "QUERY",
            String(repeating: "A", count: 5000),
        ])
        let target = random.pick([
            "/v1/receipts", "/", "*", "", "http://127.0.0.1/v1/receipts", "//v1//receipts", "/v1/receipts/%00",
            "/v1/receipts/%ff%fe", "/v1/receipts/..%2f..%2fetc", "/v1/receipts/%", "/v1/receipts?wait=1e999",
            "/v1/receipts?wait=nan", "/v1/receipts?wait=&wait=&&=%",
            "/v1/events?after=\u{FFFD}&limit=99999999999999999999",
            "/v1/events?after=18446744073709551615-9223372036854775807", "/v1/receipts\u{7F}", "/v1/\u{00E9}", "/a b c",
            "/" + String(repeating: "a/", count: 20_000), "/?" + String(repeating: "a=b&", count: 10_000), "/#x",
            "/\\..\\",
        ])
        let version = random.pick([
            "HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "HTTP/1.1.1", "http/1.1", "", "ICE/1.0",
        ])
        return "\(method) \(target) \(version)"
    }

    private static func framing(_ random: inout SeededRandom) -> [String] {
        let lengths = ["0", "3", "1000", "1048577", "-1", "99999999999999999999", "0x10", "5, 5", "5 ", "+5", "", "\0"]
        let encodings = [
            "chunked", "gzip, chunked", "chunked, chunked", "identity", "Chunked", "chunked\0", "", "xchunked",
        ]
        var headers: [String] = []
        for _ in 0...random.below(2) { headers.append("Content-Length: \(random.pick(lengths))") }
        if random.below(2) == 0 { headers.append("Transfer-Encoding: \(random.pick(encodings))") }
        if random.below(4) == 0 { headers.append("Content-Encoding: gzip") }
        return headers
    }

    private static func chunked(_ random: inout SeededRandom) -> [UInt8] {
        let sizes = [
            "5", "0", "zz", "-1", "FFFFFFFFFFFFFFFFFF", "7FFFFFFFFFFFFFFF", "5;" + String(repeating: "x", count: 9000),
            "05", " 5",
            "5\0", "", "0x5", "200000",
        ]
        // Up to the empty line.
        let whole = plain(&random, headers: ["Transfer-Encoding: chunked"])
        let head = whole[..<(whole.firstRange(of: Array("\r\n\r\n".utf8))?.upperBound ?? 0)]
        var text = ""
        for _ in 0...random.below(4) {
            text += random.pick(sizes) + random.pick(["\r\n", "\n", ""]) + #"{"a":"# + random.pick(["\r\n", "\n", ""])
        }
        text += random.pick(["0\r\n\r\n", "0\r\nX: y\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\n", "", "0\r\n"])
        return Array(head) + Array(text.utf8)
    }

    private static func giantHeader(_ random: inout SeededRandom) -> String {
        let value = String(
            repeating: random.pick(["a", "é", "\t"]), count: random.pick([8000, 32_767, 40_000, 200_000]))
        return random.pick(["X-Giant: \(value)", "\(value): x", "Authorization: Bearer \(value)", "Cookie: \(value)"])
    }

    private static let contentTypes = [
        "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/xml", "*/*", "application/json\0", ";;;;", String(repeating: "a/", count: 3000),
    ]
    private static let strangeHeaders = [
        "Expect: 100-continue", "Expect: nothing", "Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c",
        "Trailer: X", "TE: trailers",
        "Host: y", "Host:", ": empty", "No colon", "Bad Name: x", "X-\u{00E9}: y", "X: \0", "X: \u{7F}", "X: a\r\n b",
        "X: a\n b", "X:\rb",
        "traceparent: 00-zz-zz-00", "X-Request-Id: " + String(repeating: "\u{1F4A3}", count: 50),
        "Connection: keep-alive, close, upgrade",
        "Keep-Alive: timeout=99999999999999", "Range: bytes=0-", "If-Match: *", "Content-Length: 0\r\nX: y",
    ]
    private static let otherProtocols = [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\u{16}\u{03}\u{01}\u{02}\0\u{01}\0", "SSH-2.0-x\r\n",
        "AMQP\0\0\u{09}\u{01}", "EHLO x\r\n",
        "*1\r\n$4\r\nPING\r\n", "GET /\r\n",
    ]
}

/// A body that is no good submission, or barely one.
private enum BrokenBody {
    private static let words = [
        #""\ud800""#, #""\udc00\ud800""#, #""\u0000""#, "1e999999999", "-0", "1e400", "-1e-400", "0x10", "NaN", "[",
        "{", "]", "}", ",", ":",
        #"{"a":"#, #""userId":"other","#, "null", "true", "\u{FEFF}", "\u{202E}", "\"", "\\", #"\u"#, "//", "/*", "'",
        "\t", "\u{1F4A9}",
        "e", "+", "-", ".", "999999999999999999999999999999999999999999999999999999999999999999999",
    ]
    private static let fields = [
        "appId", "userId", "orderId", "signedTransaction", "receipt", "transactionId", "originalTransactionId", "item",
        "quantity", "target",
        "client", "token", "uid", "itemnum", "appsid", "vtime", "country", "ext", "finishTransaction", "unknown",
        "productId", "channel", "promotion", "installationId", "environment", "idempotencyKey", "priceMilliunits",
        "currency", "kind", "message", "device", "appVersion", "receipts",
    ]

    enum Target: String {
        case receipts
        case batch = "receipts/batch"
        case orders
        case reports = "client-reports"

        /// The member that makes a body a good one, beside app and user.
        fileprivate var member: String {
            switch self {
            case .receipts, .batch: #""receipt":"QUJD""#
            case .orders: #""productId":"\#(ConfigurationFile.coins)""#
            case .reports: #""kind":"failed""#
            }
        }
    }

    static let targets: [Target] = [.receipts, .receipts, .receipts, .batch, .orders, .reports]

    private static func good(_ random: inout SeededRandom, for target: Target) -> String {
        let start = #"{"appId":"game","userId":"f\#(random.below(1_000_000))","#
        return switch target {
        case .receipts, .batch:
            random.pick([
                start + #""receipt":"QUJD","target":{"server":"s1","role":7},"quantity":2}"#,
                start + #""signedTransaction":"eyJh.eyJi.c2ln","client":{"os":"17","log":[1,2.50,null]}}"#,
                #"{"appId":"puzzle","orderId":"o-\#(random.below(1_000_000))","transactionId":"2000","originalTransactionId":"1000"}"#,
                start + #""token":"s","uid":"8","itemnum":6,"vtime":1712000000,"receipt":"AAAA"}"#,
            ])
        case .orders: start + target.member + #","quantity":2,"idempotencyKey":"k","client":{"os":"17"}}"#
        case .reports: start + target.member + #","message":"no","device":"iPad","appVersion":"1.2"}"#
        }
    }

    static func make(_ random: inout SeededRandom, number: Int, for target: Target) -> [UInt8] {
        let body = entry(&random, number: number, for: target)
        guard target == .batch, random.below(4) > 0 else { return body }
        return Array(#"{"receipts":["#.utf8) + body + Array(",\(good(&random, for: target))]}".utf8)
    }

    private static func entry(_ random: inout SeededRandom, number: Int, for target: Target) -> [UInt8] {
        let base = #"{"appId":"game","userId":"w",\#(target.member),"#
        func with(_ field: String, _ value: [UInt8]) -> [UInt8] {
            Array("\(base)\"\(field)\":".utf8) + value + [UInt8(ascii: "}")]
        }
        switch number % 10 {
        case 0: return with("client", nested(&random))
        case 1: return with("x", Array(random.pick(numbers).utf8))
        case 2: return with(random.pick(fields), Array(random.pick(values).utf8))
        case 3: return with(random.pick(fields), quoted(random.pick(noUTF8)))
        case 4: return doubled(&random)
        case 5:
            return with(
                random.pick(fields),
                quoted(
                    [UInt8](
                        repeating: random.pick([0x41, 0x20, 0xC3, 0x22]),
                        count: random.below(random.pick([100, 10_000, 1_100_000])))))
        case 6: return Array("\(base)\(manyMembers(&random))}".utf8)
        case 7: return random.bytes(random.below(3000))
        default:
            var bytes = Array(good(&random, for: target).utf8)
            bytes.mutate(&random, with: words)
            return bytes
        }
    }

    private static let numbers = [
        "1e401", "-1e401", "1e-401", "1e99999999999999999999", "00", "-", "1.", ".1", "+1", "1e", "0.1e+", "-0.0",
        "1E400",
        String(repeating: "9", count: 64), String(repeating: "9", count: 65), String(repeating: "9", count: 900_000),
        "0." + String(repeating: "0", count: 61) + "1", "Infinity",
    ]
    private static let values = [
        "null", "true", "0", "-1", "1e5", "{}", "[]", "[[]]", #""""#, #"" ""#, #""\ud83d""#, #""\ud83d\u0041""#,
        #""\udca9""#, #""\u0000""#,
        #""\uZZZZ""#, #""a\u0300""#, #""\/\b\f""#, #"{"token":{"token":[{"token":1}]}}"#, "9223372036854775808",
        "{\"\":\"\"}",
    ]
    private static let noUTF8: [[UInt8]] = [
        [0xFF], [0xC0, 0x80], [0xED, 0xA0, 0x80], [0xF4, 0x90, 0x80, 0x80], [0xE2, 0x82], [0x80],
        [0xF8, 0x88, 0x80, 0x80, 0x80], [0x00], [0x1F], [0x7F],
        [0xEF, 0xBF, 0xBE], [0xEF, 0xBB, 0xBF],
    ]

    private static func quoted(_ bytes: [UInt8]) -> [UInt8] { [0x22] + bytes + [0x22] }

    private static func nested(_ random: inout SeededRandom) -> [UInt8] {
        let depth = random.pick([1, 30, 31, 32, 33, 40, 1000, 100_000])
        let (open, close) = random.pick([("[", "]"), (#"{"a":"#, "}"), ("[{\"a\":", "}]")])
        let closes = random.below(2) == 0 ? String(repeating: close, count: depth) : ""
        return Array((String(repeating: open, count: depth) + "1" + closes).utf8)
    }

    private static func doubled(_ random: inout SeededRandom) -> [UInt8] {
        let members = (0..<2 + random.below(50)).map { _ in "\"\(random.pick(fields))\":\(random.pick(values))" }
        return Array("{\(members.joined(separator: ","))}".utf8)
    }

    private static func manyMembers(_ random: inout SeededRandom) -> String {
        // Comparing names like the last one as text takes quadratic time.
        let name = random.pick(["k", "token", "\\u0041", String(repeating: "\u{301}\u{316}", count: 20_000)])
        let count = name.utf8.count > 100 ? 10 : random.pick([101, 500, 5000, 60_000])
        return (0..<count).map { "\"\(name)\($0)\":\($0)" }.joined(separator: ",")
    }
}
