// Package password hashes and checks passwords, checks new ones against a policy, and limits the work: a fixed number
// of hashes run at a time behind a short queue, at low priority in a child process, which runs Serve, or in this
// process.
//
// It knows no users and stores nothing. New hashes are bcrypt or argon2id; imported ones may also be
// argon2i, Firebase's scrypt and PBKDF2. No text of this package ever holds a password, a salt or a
// hash.
package password

import "errors"

// MaxBytes is the length of the longest password that is stored. bcrypt ignores further bytes, so the end of a longer
// password would not matter, to its owner's surprise. The limit also holds for argon2id, so that the setting can
// change.
const MaxBytes = 72

var (
	// ErrTooLong: a new password of more than MaxBytes bytes.
	ErrTooLong = errors.New("password: longer than 72 bytes")
	// ErrBusy: every worker is busy and the queue is full. The error is a *Busy.
	ErrBusy = errors.New("password: all workers are busy")
	// ErrClosed: the workers have been closed.
	ErrClosed = errors.New("password: the workers are closed")
)
