package outbox

// ChannelStats is what this process has done on one channel since it began.
type ChannelStats struct {
	Channel string
	// Sent went out; Retried failed for now, and will be tried again; Failed were given up.
	Sent, Retried, Failed uint64
}

// Stats are this process's metrics, by channel. Expired are messages that it found too old to be sent.
func (o *Outbox) Stats() (by []ChannelStats, expired uint64) {
	for _, c := range o.channels {
		by = append(by, ChannelStats{Channel: c.name, Sent: c.sent.Load(), Retried: c.tried.Load(),
			Failed: c.failed.Load()})
	}
	return by, o.expired.Load()
}
