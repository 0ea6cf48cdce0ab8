/// A message that the broker sends unasked, copied out of the library's memory.
enum BrokerEvent: Equatable {
    case confirmed(tag: UInt64, multiple: Bool)
    case refused(tag: UInt64, multiple: Bool)
    /// Nil: the message did not carry one of this connection's tags.
    case returned(tag: UInt64?)
    /// A nil body was larger than `FrameDispatcher.incomingBodyLimitBytes` and was skipped.
    case delivered(consumer: String, tag: UInt64, redelivered: Bool, body: [UInt8]?, headers: MessageHeaders? = nil)
    /// The broker ended a consumer: its queue is gone.
    case cancelled(consumer: String)
    case blocked
    case unblocked
}
