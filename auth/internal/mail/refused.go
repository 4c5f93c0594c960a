package mail

// Refused is a mail that will never be taken: the recipient doesn't exist, or the payload makes no mail.
type Refused struct{ Err error }

func (e *Refused) Error() string { return e.Err.Error() }

func (e *Refused) Unwrap() error { return e.Err }
