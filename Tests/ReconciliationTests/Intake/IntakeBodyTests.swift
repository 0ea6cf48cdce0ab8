import AsyncHTTPClient
import Encoding
import Foundation
import NIOCore
import NIOHTTP1
import TestServers
import Testing

/// Goal: a body that can be read is taken, however it is wrapped, and is the same receipt as the clean one; a body that
/// cannot be read is refused with its own code. Method: one post in many wrappings over real HTTP.
@Suite(.migratedDatabase, .serialized) struct IntakeBodyTests {
    private static let plain = Array(#"{"userId":"u-body","receipt":"QUJD"}"#.utf8)
    // The same text, compressed by another program.
    private static let gzip = bytes(
        "H4sIAAAAAAACA6tWKi1OLfJMUbJSKtVNyk+pVNJRKkpNTs0sKAEKBYZ6uSjVAgC1WacnJAAAAA==")
    private static let twoMembers =
        bytes("H4sIAAAAAAACA6tWKi1OLfJMUbICAOEvQ2sKAAAA")
        + bytes("H4sIAAAAAAACA1Mq1U3KT6lU0lEqSk1OzSwoUbJSCgz1clGqBQBa/bSEGgAAAA==")
    private static let zlib = bytes("eJyrViotTi3yTFGyUirVTcpPqVTSUSpKTU7NLCgBCgWGerko1QIA26ALhQ==")
    private static let bare = bytes("q1YqLU4t8kxRslIq1U3KT6lU0lEqSk1OzSwoAQoFhnq5KNUCAA==")

    private static func bytes(_ base64: String) -> [UInt8] { Array(Data(base64Encoded: base64) ?? Data()) }

    private static func post(
        _ body: [UInt8], _ headers: [(String, String)], _ intake: RunningIntake
    ) async throws -> RunningIntake.Answer {
        var request = HTTPClientRequest(url: intake.base + "/v1/receipts")
        request.method = .POST
        request.headers.add(name: "Authorization", value: "Bearer \(IntakeFixture.key)")
        for (name, value) in headers { request.headers.add(name: name, value: value) }
        request.body = .bytes(ByteBuffer(bytes: body))
        return try await RunningIntake.answer(intake.client.execute(request, timeout: .seconds(30)))
    }

    private static func utf16(_ text: [UInt8], isBigEndian: Bool, mark: Bool) -> [UInt8] {
        ((mark ? [0xFEFF] : []) + String(decoding: text, as: UTF8.self).utf16).flatMap { unit -> [UInt8] in
            let (high, low) = (UInt8(unit >> 8), UInt8(unit & 0xFF))
            return isBigEndian ? [high, low] : [low, high]
        }
    }

    // MARK: Taken

    @Test("F17: compressed, under another type, in UTF-16: the same receipt as the clean post")
    func wrappings() async throws {
        let cases: [(String, [UInt8], [(String, String)])] = [
            ("gzip", Self.gzip, [("Content-Encoding", "gzip")]),
            ("x-gzip", Self.gzip, [("Content-Encoding", "x-gzip")]),
            ("any case, and identity", Self.gzip, [("Content-Encoding", "GZip, identity")]),
            ("gzip without the header", Self.gzip, []),
            ("gzip under deflate", Self.gzip, [("Content-Encoding", "deflate")]),
            ("two members", Self.twoMembers, [("Content-Encoding", "gzip")]),
            ("bytes behind the end", Self.gzip + [0, 0, 0], [("Content-Encoding", "gzip")]),
            ("deflate", Self.zlib, [("Content-Encoding", "deflate")]),
            ("deflate without a frame", Self.bare, [("Content-Encoding", "deflate")]),
            ("inflated by a proxy", Self.plain, [("Content-Encoding", "gzip")]),
            ("a charset for a coding", Self.plain, [("Content-Encoding", "utf-8")]),
            ("identity", Self.plain, [("Content-Encoding", "identity")]),
            ("curl's default", Self.plain, [("Content-Type", "application/x-www-form-urlencoded")]),
            ("multipart", Self.plain, [("Content-Type", "multipart/form-data; boundary=x")]),
            ("plain text", Self.plain, [("Content-Type", "text/plain; charset=utf-8")]),
            ("XML", Self.plain, [("Content-Type", "text/xml")]),
            ("bytes", [0x0D, 0x0A, 0x20] + Self.plain, [("Content-Type", "application/octet-stream")]),
            ("zeros behind it", Self.plain + [0, 0], []),
            (
                "two byte order marks", [0xEF, 0xBB, 0xBF, 0xEF, 0xBB, 0xBF] + Self.plain,
                [("Content-Type", "text/plain")]
            ),
            ("another JSON", Self.plain, [("Content-Type", "application/vnd.game+json")]),
            ("a wrong charset", Self.plain, [("Content-Type", "application/json; charset=iso-8859-1")]),
            ("a form, compressed", Self.gzip, [("Content-Type", "application/x-www-form-urlencoded")]),
        ]
        try await RunningIntake.run { intake in
            let id = try #require(try await Self.post(Self.plain, [], intake)["id"])
            for (name, body, headers) in cases {
                let answer = try await Self.post(body, headers, intake)
                #expect(answer.status == 202 && answer["id"] == id, "\(name): \(answer.text)")
            }
            for (isBigEndian, mark) in [(true, true), (true, false), (false, true), (false, false)] {
                let body = Self.utf16(Self.plain, isBigEndian: isBigEndian, mark: mark)
                for type in ["application/json; charset=utf-16", "text/plain"] {
                    let answer = try await Self.post(body, [("Content-Type", type)], intake)
                    #expect(answer.status == 202 && answer["id"] == id, "\(isBigEndian) \(mark): \(answer.text)")
                }
            }
            #expect(try await intake.count("select count(*) from receipts where user_id = 'u-body'") == 1)
        }
    }

    // MARK: Refused

    @Test("F17: what cannot be read is refused by its own code, and the answer says what is taken")
    func refusals() async throws {
        let form = Array("userId=u-refused&receipt=QUJD".utf8)
        let cut = Array(Self.gzip.dropLast(9))
        // Checksum and length are wrong.
        let damaged = Self.gzip.dropLast(8) + [UInt8](repeating: 0, count: 8)
        let cases: [(String, [UInt8], [(String, String)], Int, String)] = [
            ("br", Self.plain, [("Content-Encoding", "br")], 415, "unsupported_encoding"),
            ("zstd", Self.plain, [("Content-Encoding", "zstd")], 415, "unsupported_encoding"),
            ("twice", Self.gzip, [("Content-Encoding", "gzip, gzip")], 415, "unsupported_encoding"),
            (
                "two headers", Self.gzip, [("Content-Encoding", "gzip"), ("Content-Encoding", "br")], 415,
                "unsupported_encoding"
            ),
            ("cut", cut, [("Content-Encoding", "gzip")], 400, "body_cut"),
            ("damaged", Array(damaged), [("Content-Encoding", "gzip")], 400, "bad_encoding"),
            ("no gzip", Array("hello".utf8), [("Content-Encoding", "gzip")], 400, "bad_encoding"),
            ("form", form, [("Content-Type", "application/x-www-form-urlencoded")], 415, "unsupported_media_type"),
            (
                "multipart", Array("--x\r\n".utf8), [("Content-Type", "multipart/form-data; boundary=x")], 415,
                "unsupported_media_type"
            ),
            ("XML", Array("<receipt/>".utf8), [("Content-Type", "text/xml")], 415, "unsupported_media_type"),
            ("half of a unit", [0xFF, 0xFE, 0x7B], [], 415, "unsupported_media_type"),
            ("a lone surrogate", [0xFE, 0xFF, 0xD8, 0x00, 0x00, 0x7D], [], 415, "unsupported_media_type"),
            ("form as JSON", form, [("Content-Type", "application/json")], 400, "not_json"),
            ("form without a type", form, [], 400, "not_json"),
            ("broken JSON as text", Array("{".utf8), [("Content-Type", "text/plain")], 400, "not_json"),
            ("nothing", [], [("Content-Type", "application/x-www-form-urlencoded")], 400, "not_json"),
        ]
        try await RunningIntake.run { intake in
            let before = try await intake.count("select count(*) from receipts")
            for (name, body, headers, status, code) in cases {
                let answer = try await Self.post(body, headers, intake)
                #expect(answer.status == status && answer["code"] == .string(code), "\(name): \(answer.text)")
                #expect(answer["safeToFinish"] == .bool(false), "\(name)")
                switch code {
                case "unsupported_encoding": #expect(answer.headers["accept-encoding"] == "gzip, deflate", "\(name)")
                case "unsupported_media_type": #expect(answer.headers["accept"] == "application/json", "\(name)")
                default: break
                }
            }
            #expect(try await intake.count("select count(*) from receipts") == before)
        }
    }

    @Test("A few bytes that inflate to more than a body may have: 413")
    func bombs() async throws {
        try await RunningIntake.run { intake in
            for headers in [[("Content-Encoding", "gzip")], []] {
                let answer = try await Self.post(GzipBomb.bytes(inflatingTo: 20 << 20), headers, intake)
                #expect(answer.status == 413 && answer["code"] == .string("body_too_large"), "\(answer.text)")
                #expect(answer["field"] == .string("body") && answer["limit"] == .string("request.bodyBytes"))
            }
        }
        // The bound is the same for what comes out as for what comes in.
        try await RunningIntake.run(environment: ["MAKEGOOD_BODY_BYTES_MAX": "1024"]) { intake in
            for (count, status) in [(1024 - Self.plain.count, 202), (1025 - Self.plain.count, 413)] {
                let body = Self.plain + [UInt8](repeating: 0x20, count: count)
                let plain = try await Self.post(body, [], intake)
                #expect(plain.status == status)
                // The frame takes 23 bytes, so both are beyond the bound as they come.
                let framed = try await Self.post(GzipBomb.stored(body), [], intake)
                #expect(framed.status == 413)
            }
            let small = try await Self.post(GzipBomb.stored(Self.plain), [], intake)
            #expect(small.status == 202)
        }
    }

    @Test("A body of very many values is refused, because each value takes memory")
    func values() async throws {
        try await RunningIntake.run { intake in
            for (count, status) in [(200_000, 202), (JSONValue.valuesMax, 400)] {
                let list = Array(repeating: "0", count: count).joined(separator: ",")
                let answer = try await intake.post(#"{"userId":"u-body","receipt":"QUJD","x":[\#(list)]}"#)
                #expect(answer.status == status, "\(answer.text.prefix(200))")
                if status == 400 {
                    #expect(answer["code"] == .string("too_long") && answer["field"] == .string("x"))
                }
            }
        }
    }
}

/// Gzip members (RFC 1952) that this file writes itself.
enum GzipBomb {
    private static let head: [UInt8] = [0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF]

    /// A member that inflates to at least `count` spaces, with a wrong checksum at its end: one literal, then matches of
    /// 258 bytes at distance 1, in one block with the fixed codes (RFC 1951, 3.2.6).
    static func bytes(inflatingTo count: Int) -> [UInt8] {
        var (bytes, byte, filled) = (head, UInt8(0), UInt8(0))
        // Codes begin with their highest bit, and fill each byte from its lowest.
        func put(_ code: UInt16, _ length: Int) {
            for place in (0..<length).reversed() {
                byte |= UInt8(code >> UInt16(place) & 1) << filled
                filled += 1
                if filled == 8 {
                    bytes.append(byte)
                    (byte, filled) = (0, 0)
                }
            }
        }
        put(0b110, 3)
        put(0x30 + 0x20, 8)
        for _ in 0...count / 258 { put(0xC5 << 5, 13) }
        put(0, 7)
        put(0, 8)
        return bytes + [UInt8](repeating: 0, count: 8)
    }

    /// A member that holds these bytes, fewer than 65,536, as they are.
    static func stored(_ content: [UInt8]) -> [UInt8] {
        func little(_ value: UInt32, _ count: Int) -> [UInt8] {
            (0..<count).map { UInt8(truncatingIfNeeded: value >> UInt32(8 * $0)) }
        }
        let length = UInt32(content.count)
        var remainder = ~UInt32(0)
        for byte in content {
            remainder ^= UInt32(byte)
            for _ in 0..<8 { remainder = remainder >> 1 ^ (remainder & 1 == 1 ? 0xEDB8_8320 : 0) }
        }
        return head + [1] + little(length, 2) + little(~length, 2) + content + little(~remainder, 4) + little(length, 4)
    }
}
