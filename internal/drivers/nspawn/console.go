package nspawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const (
	maxConsole    = 8 << 20     // beyond it the console begins anew
	keptConsole   = 1 << 20     // of what it had
	lastConsole   = 4 << 10     // in which its last words are
	consoleLooks  = time.Second // a machine may write all that its host can
	consoleSuffix = ".old"
)

// trimConsole keeps a machine's console from filling the host's disk, until the program ends.
func trimConsole() {
	for range time.Tick(consoleLooks) {
		if err := trim(consoleFile, maxConsole, keptConsole); err != nil {
			fmt.Fprintf(os.Stderr, "cannot trim the console: %v\n", err)
		}
	}
}

// trim empties a file that has more than most, and keeps the end of it in <file>.old. Who writes to it appends, and so goes on
// at its beginning.
func trim(file string, most, kept int64) error {
	info, err := os.Stat(file)
	if err != nil || info.Size() <= most {
		return err
	}
	text, err := lastOf(file, kept)
	if err == nil {
		err = os.WriteFile(file+consoleSuffix, text, 0o600)
	}
	// Emptied in any case: on a full disk this is what makes room.
	return errors.Join(err, os.Truncate(file, 0))
}

// lastOf returns the end of a file, however large it is.
func lastOf(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-most), most))
}

// lastWords is the last line of a machine's console.
func lastWords(file string) string {
	text, _ := lastOf(file, lastConsole)
	return strings.ToValidUTF8(strings.TrimSpace(tail(strings.TrimSpace(string(text)), 1)), "?")
}
