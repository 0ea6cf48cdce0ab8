import Foundation
package import Hummingbird
package import NIOCore

/// What one request carries through the routes.
package struct HTTPContext: RequestContext {
    package var coreContext: CoreRequestContextStorage
    /// The connection, for time limits and for closing it in an orderly way.
    package let channel: any Channel

    package init(source: ApplicationRequestContextSource) {
        coreContext = .init(source: source)
        channel = source.channel
    }
}
