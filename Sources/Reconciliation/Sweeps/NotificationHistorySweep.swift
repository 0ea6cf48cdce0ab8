/// Asks Apple for the notifications that it could not bring.
struct NotificationHistorySweep: Sendable {
    private let sweeps: Sweeps

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    /// Runs until the task is cancelled.
    func run() async { await sweeps.loop { false } }
}
