import sys, time, warnings
warnings.simplefilter('ignore')
sys.path[:0]=['.','..']
import torch, logging
from op_samples import *
from op_checks import *
torch.manual_seed(0)
for spec in sys.argv[1:]:
    name,_,variant=spec.partition(':')
    info=find_info(name,variant)
    for dt in (torch.float32, torch.bfloat16, torch.int64):
        if dt not in info.supported_dtypes('cpu'): continue
        for way in WAYS:
            t=time.time(); o=check(info, dt, 'cpu', way, 6)
            print(name, dt, way, o.status, o.samples, 'k',o.kernels, o.externs, o.reasons[:2], o.aten if way=='forward' else '', round(time.time()-t,2), flush=True)
