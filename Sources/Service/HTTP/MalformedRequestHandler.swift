import Encoding
import HTTPTypes
import NIOCore
import NIOHTTPTypes

/// What is no HTTP never reaches the routes; the server below refuses it with an empty 400. This makes a problem
/// document of it, so that no error leaves without one.
///
/// Every answer of ours has a request id (`AnswerMiddleware`); an error without one is the server's own.
final class MalformedRequestHandler: ChannelOutboundHandler, RemovableChannelHandler {
    typealias OutboundIn = HTTPResponsePart
    typealias OutboundOut = HTTPResponsePart

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        guard case .head(var head) = unwrapOutboundIn(data), head.status.code >= 400,
            head.headerFields[.requestID] == nil
        else { return context.write(data, promise: promise) }
        let problem = Problem(head.status, headers: [:])
        let body = problem.document.bytes
        head.headerFields[.contentType] = Problem.mediaType
        head.headerFields[.contentLength] = String(body.count)
        head.headerFields[.cacheControl] = "no-store"
        context.write(wrapOutboundOut(.head(head)), promise: nil)
        // The end follows from the server.
        context.write(wrapOutboundOut(.body(ByteBuffer(bytes: body))), promise: promise)
    }
}
