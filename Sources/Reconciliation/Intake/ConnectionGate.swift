import HummingbirdCore
import Synchronization

/// How many connections a listener may have open. While it is full, those that come wait in the kernel's backlog.
///
/// Once a quarter only is left every answer ends its connection. So whoever waits gets a turn, and connections that are kept
/// open and idle never take all of the places.
package final class ConnectionGate: AvailableConnectionsDelegate {
    private let connectionsMax: Int
    private let open = Atomic<Int>(0)

    init(_ connectionsMax: Int) { self.connectionsMax = connectionsMax }

    var isCrowded: Bool { open.load(ordering: .relaxed) * 4 >= connectionsMax * 3 }

    package func connectionOpened() { open.add(1, ordering: .relaxed) }
    package func connectionClosed() { open.subtract(1, ordering: .relaxed) }
    package func isAcceptingNewConnections() -> Bool { open.load(ordering: .relaxed) < connectionsMax }
}
