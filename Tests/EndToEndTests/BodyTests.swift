import Adversary
import AppStoreSimulator
import Foundation
import NIOCore
import Testing

extension EndToEnd {
    /// Bodies of megabytes: what is taken, and how much memory they cost.
    @Suite(.serialized) struct Bodies {
        /// The bound that deploy/operating.md states ("Large bodies").
        private static let residentMegabytesMax = 930
        private static let bytesMax = 8 << 20

        /// Goal: receipts of more than 1 MiB and of almost 8 MiB are taken by default and granted, and one that is just
        /// over is refused with its field (F5).
        /// Method: genuine receipts that are padded go from ingest through the worker to a grant, the smaller one through
        /// verifyReceipt too. The larger one is judged here: a build without optimisation needs a minute for it, and the
        /// simulator would need as long. A larger body is answered 413 by its announced length.
        @Test(.timeLimit(.minutes(8))) func receiptsOfMegabytesAreTaken() async throws {
            try await System.run(.init(timeScale: 0.5, endsQuiet: false)) { system in
                let ingest = try await system.start(.ingest)
                async let scheduler = system.start(.scheduler)
                async let worker = system.start(.worker)
                _ = try await (scheduler, worker)
                let sizes = [
                    (padding: 1 << 20, least: 1 << 20), (padding: 6_275_000, least: Self.bytesMax - (32 << 10)),
                ]
                for (index, size) in sizes.enumerated() {
                    if index == 1 {
                        try system.configureGame { $0.legacyReceipts = ["local"] }
                        try await system.reload()
                    }
                    let (sale, body) = try await receipt(of: size.padding, "u\(index)", system)
                    #expect((size.least...Self.bytesMax).contains(body.count), "\(body.count)")
                    system.owe(sale, to: "u\(index)")
                    let answer = try await system.client.postBody(body, timeout: .seconds(180))
                    #expect(answer.isAccepted, "\(answer.text)")
                    try await system.settleDebts(within: .seconds(240))
                    try await system.wait("the receipt to end") {
                        try await system.client.receipt(answer.id).state == "granted"
                    }
                    let ended = try await system.client.receipt(answer.id)
                    #expect(ended.safeToFinish == true, "\(ended.text)")
                }
                let port = try await ingest.port(of: "ingest")
                let refused = try await Self.announce(Self.bytesMax + 1, sending: 0, system.client, port)
                #expect(refused.status == 413 && refused.isProblem && refused.text.contains(#""field":"body""#))
            }
        }

        /// Goal: 64 posts of 8 MiB at once cost a bounded amount of memory; the next large post is answered 503 with
        /// Retry-After; small posts are taken meanwhile; and each of the 64 is answered.
        /// Method: 64 callers send 8 MiB each but for the last byte. When all of that is there, another post of 8 MiB is
        /// answered 503, and a signed transaction 202. Then the callers send the last byte. Two of them posted a receipt
        /// that can be stored, the others no JSON; a build without optimisation judges so slowly that some wait too long
        /// for their turn, which is 503. The memory is the most that was resident at any time.
        @Test func sixtyFourOfEightMiB() async throws {
            try await System.run(.init(endsQuiet: false)) { system in
                let ingest = try await system.start(.ingest)
                let client = try system.client
                let port = try await ingest.port(of: "ingest")
                let piece = ByteBuffer(repeating: UInt8(ascii: "A"), count: 64 << 10)
                var callers: [AsyncStream<ByteBuffer>.Continuation] = []
                try await withThrowingTaskGroup(of: Client.Answer.self) { group in
                    for number in 0..<64 {
                        let (body, continuation) = AsyncStream.makeStream(of: ByteBuffer.self)
                        callers.append(continuation)
                        let start = number < 2 ? #"{"userId":"u1","appId":"game","receipt":""# : "A"
                        continuation.yield(ByteBuffer(string: start))
                        var rest = Self.bytesMax - start.utf8.count - (number < 2 ? 2 : 1)
                        if number < 2 { rest -= rest % 4 }
                        let bytes = start.utf8.count + rest + (number < 2 ? 2 : 1)
                        while rest > 0 {
                            continuation.yield(piece.getSlice(at: 0, length: min(rest, piece.readableBytes)) ?? piece)
                            rest -= piece.readableBytes
                        }
                        if number < 2 { continuation.yield(ByteBuffer(string: "\"")) }
                        group.addTask { try await client.postStream(body, bytes: bytes) }
                    }
                    try await system.wait("all bodies to be there but for their ends") {
                        try await Self.bytesHeld("large", client) >= 64 * (Self.bytesMax - 8)
                    }
                    let refused = try await Self.announce(Self.bytesMax, sending: 128 << 10, client, port)
                    #expect(refused.status == 503 && refused.isProblem, "\(refused.text)")
                    #expect(refused.text.contains("process.bodies"))
                    #expect(refused.head.lowercased().contains("\r\nretry-after: "))
                    let sale = try await system.appStore.sell()
                    let small = try await client.post(.init(userId: "u1", signedTransaction: sale.signedTransaction))
                    #expect(small.status == 202, "\(small.text)")
                    for (number, caller) in callers.enumerated() {
                        caller.yield(ByteBuffer(string: number < 2 ? "}" : "A"))
                        caller.finish()
                    }
                    let answers = try await group.reduce(into: [Int: Int]()) { $0[$1.status, default: 0] += 1 }
                    #expect(answers.values.reduce(0, +) == 64 && answers[202, default: 0] > 0, "\(answers)")
                    #expect(Set(answers.keys).isSubset(of: [202, 400, 503]), "\(answers)")
                }
                let resident = try ingest.peakMegabytes
                print("bodies: peak \(resident) MB")
                #expect(resident > 500, "all of the bodies were there")
                #expect(resident < Self.residentMegabytesMax)
                // Two posted one proof of one user.
                #expect(try await system.count("select count(*) from receipts where kind = 'receipt'") == 1)
            }
        }

        /// Goal: callers without a key who fill the room of Apple's notifications delay no purchase. Method: 128
        /// callers send 256 KiB each to the route of version 2 but for the last byte, or four send 8 MiB each to that of
        /// version 1. When all of that is there, a
        /// further notification is answered 503, and a large and a small receipt are taken. Then the callers end, and
        /// a notification is judged.
        @Test(arguments: [(2, 128, 256 << 10), (1, 4, bytesMax)])
        func notificationsTakeNoRoomFromReceipts(version: Int, count: Int, bytes: Int) async throws {
            let path = Self.notifications + (version == 1 ? "/v1" : "")
            try await System.run(.init(endsQuiet: false)) { system in
                try await system.start(.ingest)
                let client = try system.client
                let forged = Data(#"{"signedPayload":"\#(String(repeating: "a", count: 1024))"}"#.utf8)
                var callers: [AsyncStream<ByteBuffer>.Continuation] = []
                try await withThrowingTaskGroup(of: Client.Answer.self) { group in
                    for _ in 0..<count {
                        let (body, continuation) = AsyncStream.makeStream(of: ByteBuffer.self)
                        callers.append(continuation)
                        continuation.yield(ByteBuffer(repeating: UInt8(ascii: "A"), count: bytes - 1))
                        group.addTask { try await client.postStream(body, bytes: bytes, to: path) }
                    }
                    try await system.wait("all bodies to be there but for their ends") {
                        try await Self.bytesHeld("notification", client) == count * (bytes - 1)
                    }
                    let refused = try await client.postBody(forged, to: path)
                    #expect(refused.status == 503 && refused.text.contains("process.bodies"), "\(refused.text)")
                    let (_, large) = try await receipt(of: 1 << 20, "u1", system)
                    let taken = try await client.postBody(large)
                    #expect(taken.status == 202, "\(taken.text)")
                    let sale = try await system.appStore.sell()
                    let small = try await client.post(.init(userId: "u1", signedTransaction: sale.signedTransaction))
                    #expect(small.status == 202, "\(small.text)")
                    for caller in callers {
                        caller.yield(ByteBuffer(string: "A"))
                        caller.finish()
                    }
                    for try await answer in group { #expect(answer.status == 400, "\(answer.text)") }
                }
                let judged = try await client.postBody(forged, to: path)
                #expect(judged.status == (version == 1 ? 400 : 401), "\(judged.text)")
            }
        }

        private static let notifications = "/v1/apple/notifications"

        /// The answer to the head of a post and the first bytes of its body.
        private static func announce(
            _ bytes: Int, sending sent: Int, _ client: Client, _ port: Int
        ) async throws -> RawAnswer {
            let head = """
                POST /v1/receipts HTTP/1.1\r
                Host: localhost\r
                Authorization: Bearer \(client.credential ?? "")\r
                Content-Length: \(bytes)\r
                \r

                """
            let body = [UInt8](repeating: UInt8(ascii: "A"), count: sent)
            return try #require(
                try await RawExchange(pieces: [Array(head.utf8) + body], isComplete: true).run(port).first)
        }

        /// The bytes of bodies that ingest holds, by its own metric.
        private static func bytesHeld(_ size: String, _ client: Client) async throws -> Int {
            let lines = try await client.get("/metrics").text.split(separator: "\n")
            let line = lines.first { $0.hasPrefix(#"makegood_http_body_bytes{size="\#(size)"} "#) }
            return line?.split(separator: " ").last.flatMap { Double($0) }.map { Int($0) } ?? 0
        }

        /// A sale, and the post of its receipt with so many bytes more than it needs.
        private func receipt(
            of padding: Int, _ user: String, _ system: System
        ) async throws -> (sale: Sale, body: Data) {
            let sale = try await system.appStore.sell()
            var request = ReceiptRequest(app: "game", transactionIds: [sale.purchase.transactionId])
            request.paddingBytes = padding
            let receipt = try system.appStore.store.receipt(request)
            return (sale, Data(#"{"appId":"game","userId":"\#(user)","receipt":"\#(receipt)"}"#.utf8))
        }
    }
}

extension RunningProcess {
    /// The most memory that was resident at any time, in megabytes (proc(5), VmHWM).
    var peakMegabytes: Int {
        get throws {
            let status = try String(contentsOfFile: "/proc/\(id)/status", encoding: .utf8)
            let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("VmHWM:") })
            return try #require(line.split(separator: " ").dropLast().last.flatMap { Int($0) }) / 1024
        }
    }
}
