package daemon

import (
	"context"

	"gatehouse/auth/internal/store"
)

// These are the results of checkMirror, with the numbers that the metric auth.mirror.current reports.
const (
	mirrorNone = iota
	mirrorBroken
	mirrorCurrent
)

// checkMirror checks the mirror, the triggers that keep the former service's tables current, and logs what is wrong
// with it, if a mirror is installed.
func (d *daemon) checkMirror(ctx context.Context) {
	m, err := d.db.Mirror(ctx)
	switch {
	case err != nil: // the next check may succeed
	case !m.Installed:
		d.mirrored.Store(mirrorNone)
	case m.Enabled < m.Triggers:
		d.mirrored.Store(mirrorBroken)
		d.log.Error("the mirror lacks triggers or some are disabled: the application's tables are no longer kept "+
			"current; auth mirror check names them, auth mirror install makes them again", "missing", m.Triggers-m.Enabled)
	default:
		d.mirrored.Store(mirrorCurrent)
		if m.Version < store.MirrorVersion {
			d.log.Warn("the mirror is of an older version: auth mirror install brings it up to date", "version", m.Version)
		}
	}
}
