//go:build !linux

package imagetest

import "errors"

func inNetwork(int, func() error) error {
	return errors.New("imagetest: networks of processes are Linux's")
}
