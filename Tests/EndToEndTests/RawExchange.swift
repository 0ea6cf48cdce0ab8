import Foundation
import Glibc

/// An answer of ingest as it came over the socket.
struct RawAnswer: Sendable {
    let status: Int
    let head: String
    let text: String

    /// Whether it is a problem document (RFC 9457) that tells the client to keep its purchase.
    var isProblem: Bool {
        guard head.lowercased().contains("content-type: application/problem+json"),
            let json = try? JSONSerialization.jsonObject(with: Data(text.utf8)) as? [String: Any]
        else { return false }
        return json["safeToFinish"] as? Bool == false && json["code"] is String && json["status"] as? Int == status
    }

    /// Every answer in the bytes; an unfinished last answer is left out.
    static func all(in bytes: [UInt8]) -> [RawAnswer] {
        var answers: [RawAnswer] = []
        var rest = bytes[...]
        while let end = rest.firstRange(of: Array("\r\n\r\n".utf8)) {
            let head = String(decoding: rest[..<end.lowerBound], as: UTF8.self)
            guard head.hasPrefix("HTTP/1."), let status = Int(head.dropFirst(9).prefix(3)) else { break }
            let length = head.lowercased().split(separator: "\r\n").first { $0.hasPrefix("content-length:") }
                .flatMap { Int($0.dropFirst(15).trimmingCharacters(in: .whitespaces)) }
            let body = rest[end.upperBound...].prefix(length ?? 0)
            guard body.count == length ?? 0 else { break }
            if status >= 200 {
                answers.append(RawAnswer(status: status, head: head, text: String(decoding: body, as: UTF8.self)))
            }
            rest = rest[body.endIndex...]
        }
        return answers
    }
}

/// One connection that sends bytes and reads answers, in a thread of its own because these calls block.
struct RawExchange: Sendable {
    struct Failure: Error {
        let call: String
    }

    let pieces: [[UInt8]]
    /// Whether the bytes are a whole good request, which must be answered. Otherwise 150 ms of silence end the reading.
    let isComplete: Bool

    func run(_ port: Int) async throws -> [RawAnswer] {
        let bytes: Result<[UInt8], any Error> = await withCheckedContinuation { continuation in
            Thread.detachNewThread { continuation.resume(returning: Result { try exchange(port) }) }
        }
        return RawAnswer.all(in: try bytes.get())
    }

    private func exchange(_ port: Int) throws -> [UInt8] {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        guard descriptor >= 0 else { throw Failure(call: "socket") }
        defer { close(descriptor) }
        var patience = timeval(tv_sec: isComplete ? 60 : 0, tv_usec: isComplete ? 0 : 150_000)
        setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, socklen_t(MemoryLayout<timeval>.size))
        // A client that gives up in the middle of a good request cannot expect an answer.
        var limit = timeval(tv_sec: isComplete ? 60 : 5, tv_usec: 0)
        setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = in_port_t(port).bigEndian
        address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        let connected = withUnsafePointer(to: &address) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
        guard connected == 0 else { throw Failure(call: "connect") }
        for (index, piece) in pieces.enumerated() {
            if index > 0 { usleep(20_000) }
            // A server that has answered and closed takes no more bytes: its answer is what counts.
            guard Self.send(piece, to: descriptor) else { break }
        }
        return Self.receive(from: descriptor)
    }

    private static func send(_ bytes: [UInt8], to descriptor: Int32) -> Bool {
        var sent = 0
        while sent < bytes.count {
            let count = bytes.withUnsafeBytes {
                Glibc.send(descriptor, $0.baseAddress! + sent, bytes.count - sent, Int32(MSG_NOSIGNAL))
            }
            guard count > 0 else { return false }
            sent += count
        }
        return true
    }

    private static func receive(from descriptor: Int32) -> [UInt8] {
        var bytes: [UInt8] = []
        var buffer = [UInt8](repeating: 0, count: 65_536)
        while bytes.count < 8 << 20 {
            let count = recv(descriptor, &buffer, buffer.count, 0)
            guard count > 0 else { break }
            bytes += buffer[..<count]
        }
        return bytes
    }
}
