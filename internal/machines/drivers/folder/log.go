package folder

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const (
	maxLog    = 8 << 20
	keptLog   = 1 << 20
	trimEvery = time.Second // a machine may write as fast as the host can
	oldSuffix = ".old"
)

// keepSmall keeps a log from filling the host's disk, until the program ends.
func keepSmall(path string) {
	for range time.Tick(trimEvery) {
		if err := trim(path); err != nil {
			fmt.Fprintf(os.Stderr, "cannot trim the log: %v\n", err)
		}
	}
}

// trim empties a log that is too large, and keeps its last bytes in <path>.old. The writer appends, and so continues at the beginning.
func trim(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= maxLog {
		return err
	}
	text, err := end(path, keptLog)
	if err == nil {
		err = os.WriteFile(path+oldSuffix, text, 0o600)
	}
	// Emptied in any case: on a full disk this is what frees room.
	return errors.Join(err, os.Truncate(path, 0))
}

// LastLine returns the last line of a log that is not empty, of at most 4 KiB; "" where there is none.
func LastLine(path string) string {
	text, _ := end(path, 4<<10)
	last := strings.TrimSpace(string(text))
	return strings.ToValidUTF8(strings.TrimSpace(last[strings.LastIndexByte(last, '\n')+1:]), "?")
}

// end returns the last bytes of a file of any size.
func end(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
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
