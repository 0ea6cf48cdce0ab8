import Foundation
import NIOCore
import NIOHTTP1

/// The bytes of a request that posts a receipt or a notification, or places an order; only user and token differ
/// between requests.
struct LoadRequest: Sendable {
    /// The head up to the value of Content-Length.
    private let head: ByteBuffer
    /// The start of the JSON text, after which the user's number follows.
    private let beforeUser: ByteBuffer
    private let beforeToken: ByteBuffer
    /// False for what Apple posts, which names no user.
    private let namesUser: Bool
    private static let afterToken: StaticString = #""}"#

    /// The kind of the tokens.
    enum Kind {
        case signedTransactions
        /// App receipts, in base64url.
        case receipts
        /// Orders of this product: the token is the role in the game, which makes each order a different one.
        case orders(product: String)
        /// Apple's notifications, version 2.
        case notifications
    }

    init(address: LoadAddress, key: String, appId: String?, _ kind: Kind = .signedTransactions) throws {
        let path: String
        if case .notifications = kind { namesUser = false } else { namesUser = true }
        switch kind {
        case .signedTransactions: (path, beforeToken) = ("receipts", ByteBuffer(string: #"","signedTransaction":""#))
        case .receipts: (path, beforeToken) = ("receipts", ByteBuffer(string: #"","receipt":""#))
        case .notifications: (path, beforeToken) = ("apple/notifications", ByteBuffer(string: #"{"signedPayload":""#))
        case .orders(let product):
            let product = String(decoding: try JSONEncoder().encode(product), as: UTF8.self)
            (path, beforeToken) = ("orders", ByteBuffer(string: #"","productId":\#(product),"ext":""#))
        }
        head = ByteBuffer(
            string: """
                POST \(address.path)/v1/\(path) HTTP/1.1\r
                Host: \(address.authority)\r
                Authorization: Bearer \(key)\r
                Content-Type: application/json\r
                Content-Length:\u{20}
                """)
        let app = try appId.map { "\"appId\":\(String(decoding: try JSONEncoder().encode($0), as: UTF8.self))," } ?? ""
        beforeUser = ByteBuffer(string: namesUser ? "{\(app)\"userId\":\"load-" : "")
    }

    /// - Parameters:
    ///   - token: needs no escaping (``TokenFile`` has checked it).
    ///   - buffer: is overwritten; its memory is reused where nobody else holds it.
    func write(_ token: ByteBuffer, user: Int, into buffer: inout ByteBuffer) {
        let user = namesUser ? String(user) : ""
        let length =
            beforeUser.readableBytes + user.utf8.count + beforeToken.readableBytes + token.readableBytes
            + Self.afterToken.utf8CodeUnitCount
        buffer.clear(minimumCapacity: head.readableBytes + 20 + length)
        buffer.writeImmutableBuffer(head)
        buffer.writeString(String(length))
        buffer.writeStaticString("\r\n\r\n")
        buffer.writeImmutableBuffer(beforeUser)
        buffer.writeString(user)
        buffer.writeImmutableBuffer(beforeToken)
        buffer.writeImmutableBuffer(token)
        buffer.writeStaticString(Self.afterToken)
    }
}

/// Sends requests whose bytes are already complete: the body's bytes hold the head too. NIO's own encoder would put the
/// same head together each time. The decoder of the answers, which comes after this handler, needs to see a head.
final class LoadRequestWriter: ChannelOutboundHandler {
    typealias OutboundIn = HTTPClientRequestPart
    typealias OutboundOut = ByteBuffer

    /// The head for the decoder: it says only that an answer to this request has a body.
    static let head = HTTPClientRequestPart.head(.init(version: .http1_1, method: .POST, uri: "/v1/receipts"))

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        if case .body(.byteBuffer(let bytes)) = Self.unwrapOutboundIn(data) {
            context.write(Self.wrapOutboundOut(bytes), promise: promise)
        } else {
            promise?.succeed()
        }
    }
}
