import Foundation
import NIOCore
import NIOHTTP1

/// The bytes of a request that posts a receipt or places an order; all but user and token are the same each time.
struct LoadRequest: Sendable {
    /// Up to the value of Content-Length.
    private let head: ByteBuffer
    /// Ends inside the JSON text, where the user's number follows.
    private let beforeUser: ByteBuffer
    private let beforeToken: ByteBuffer
    private static let afterToken: StaticString = #""}"#

    /// What the tokens are.
    enum Kind {
        case signedTransactions
        /// App receipts, in base64url.
        case receipts
        /// The role in the game that an order of this product is for: what tells one order from another.
        case orders(product: String)
    }

    init(address: LoadAddress, key: String, appId: String?, _ kind: Kind = .signedTransactions) throws {
        let path: String
        switch kind {
        case .signedTransactions: (path, beforeToken) = ("receipts", ByteBuffer(string: #"","signedTransaction":""#))
        case .receipts: (path, beforeToken) = ("receipts", ByteBuffer(string: #"","receipt":""#))
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
        beforeUser = ByteBuffer(string: "{\(app)\"userId\":\"load-")
    }

    /// - Parameters:
    ///   - token: needs no escaping (``TokenFile`` saw to it).
    ///   - buffer: is overwritten; its memory is used again where nobody else holds it.
    func write(_ token: ByteBuffer, user: Int, into buffer: inout ByteBuffer) {
        let user = String(user)
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

/// Sends a request that is written already, with the head it brings inside its body's bytes. NIO's own encoder would
/// put the same head together each time; the decoder of the answer, which stands after this, wants to see one.
final class LoadRequestWriter: ChannelOutboundHandler {
    typealias OutboundIn = HTTPClientRequestPart
    typealias OutboundOut = ByteBuffer

    /// What the decoder needs to know: an answer to this has a body.
    static let head = HTTPClientRequestPart.head(.init(version: .http1_1, method: .POST, uri: "/v1/receipts"))

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        if case .body(.byteBuffer(let bytes)) = Self.unwrapOutboundIn(data) {
            context.write(Self.wrapOutboundOut(bytes), promise: promise)
        } else {
            promise?.succeed()
        }
    }
}
