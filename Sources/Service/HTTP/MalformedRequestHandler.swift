import Encoding
import HTTPTypes
import NIOCore
import NIOHTTPTypes

/// Gives a problem document to requests that are no HTTP, so that no error leaves without one. Such requests never
/// reach the routes, and the server below refuses them with an empty 400.
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
        // The server writes the end.
        context.write(wrapOutboundOut(.body(ByteBuffer(bytes: body))), promise: promise)
    }
}
